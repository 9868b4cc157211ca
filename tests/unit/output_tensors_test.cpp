// DistributedDataParallel finds the tensors in a network's output. LibTorch has a CHECK of its
// own: only REQUIRE is used here.

#include "worker_runtime/nn/output_tensors.hpp"

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/support/catch.hpp"

namespace {

struct Head {
    torch::Tensor logits;
    std::optional<torch::Tensor> mask;
};

struct Output {
    torch::Tensor loss;
    Head head;
    std::map<std::string, torch::Tensor> hidden;
    double temperature = 1;
    std::string name;
};

struct Scaled {
    torch::Tensor scales[2];
    int shape[4] = {};
    torch::Tensor output;
};

class Opaque {
public:
    explicit Opaque(int value) : value_(value) {}
    [[nodiscard]] int value() const { return value_; }

private:
    int value_;
};

template <typename Found>
std::vector<int> numbers_in(const Found& output) {
    std::vector<torch::Tensor> found;
    ddprun::worker::collect_tensors(output, found);
    std::vector<int> numbers;
    for (const torch::Tensor& tensor : found) {
        numbers.push_back(tensor.item<int>());
    }
    return numbers;
}

torch::Tensor number(int value) {
    return torch::full({}, value);
}

using Numbers = std::vector<int>;

}  // namespace

TEST_CASE("the tensors of a struct are found, with those of its structs, optionals and maps") {
    const Output output{.loss = number(1),
                        .head = {.logits = number(2), .mask = number(3)},
                        .hidden = {{"a", number(4)}, {"b", number(5)}},
                        .name = "x"};
    REQUIRE(numbers_in(output) == Numbers{1, 2, 3, 4, 5});
    REQUIRE(numbers_in(Head{.logits = number(2), .mask = std::nullopt}) == Numbers{2});
    REQUIRE(numbers_in(Scaled{.scales = {number(1), number(2)}, .output = number(3)}) ==
            Numbers{1, 2, 3});
}

TEST_CASE("tensors are found in every container, alone and nested") {
    REQUIRE(numbers_in(number(1)) == Numbers{1});
    REQUIRE(numbers_in(torch::Tensor()).empty());
    REQUIRE(numbers_in(std::optional<torch::Tensor>()).empty());
    REQUIRE(numbers_in(std::vector<Head>{{number(1), {}}, {number(2), number(3)}}) ==
            Numbers{1, 2, 3});
    REQUIRE(numbers_in(std::make_tuple(number(1), std::make_pair(number(2), 0.5))) ==
            Numbers{1, 2});
    REQUIRE(numbers_in(std::unordered_map<std::string, torch::Tensor>{{"a", number(7)}}) ==
            Numbers{7});
}

TEST_CASE("an output of a class that shows nothing compiles") {
    REQUIRE(numbers_in(Opaque(3)).empty());
    REQUIRE(numbers_in(std::make_pair(number(1), Opaque(3))) == Numbers{1});
}
