// The sampler in LibTorch's loader, and ours around it. LibTorch has a CHECK of its own: only
// REQUIRE is used here.

#include "worker_runtime/data/data_loader.hpp"

#include <ATen/core/Dict.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tests/support/catch.hpp"

using ddprun::DataLoader;
using ddprun::DataLoaderOptions;
using ddprun::DistributedSampler;

namespace {

using Batch = std::vector<std::int64_t>;
using Batches = std::vector<Batch>;

/// A sample is its number. Refuses `bad` once.
struct Numbers : torch::data::datasets::BatchDataset<Numbers, Batch> {
    explicit Numbers(std::int64_t refused = -1)
        : bad(std::make_shared<std::atomic<std::int64_t>>(refused)) {}

    Batch get_batch(c10::ArrayRef<std::size_t> indices) override {
        Batch batch;
        for (const std::size_t index : indices) {
            std::int64_t expected = static_cast<std::int64_t>(index);
            if (bad->compare_exchange_strong(expected, -1)) {
                throw std::runtime_error("sample " + std::to_string(index) + " is broken");
            }
            batch.push_back(static_cast<std::int64_t>(index));
        }
        return batch;
    }
    [[nodiscard]] std::optional<std::size_t> size() const override { return 103; }

    std::shared_ptr<std::atomic<std::int64_t>> bad;
};

DistributedSampler sampler_of_rank(int rank) {
    return {103, rank, 3, {.seed = 4}};
}

/// Takes the remaining batches of the sampler's epoch.
Batches rest_of(DistributedSampler& sampler) {
    Batches batches;
    while (const auto batch = sampler.next(8)) {
        batches.emplace_back(batch->begin(), batch->end());
    }
    return batches;
}

Batches rest_of(DataLoader<Numbers>& loader) {
    Batches batches;
    while (auto batch = loader.next()) {
        batches.push_back(std::move(*batch));
    }
    return batches;
}

}  // namespace

TEST_CASE("in LibTorch's data loader the sampler gives its order, a new epoch for each pass") {
    for (const std::size_t workers : {0U, 2U}) {
        DistributedSampler sampler = sampler_of_rank(1);
        const auto loader = torch::data::make_data_loader(
            Numbers(), sampler, torch::data::DataLoaderOptions(8).workers(workers));
        for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
            sampler.set_epoch(epoch);
            Batches batches;
            for (const Batch& batch : *loader) {
                batches.push_back(batch);
            }
            REQUIRE(batches == rest_of(sampler));
        }
    }
}

TEST_CASE("a resumed sampler begins its first pass where it is") {
    DistributedSampler sampler = sampler_of_rank(0);
    sampler.set_epoch(2);
    (void)sampler.next_batch(16);
    std::stringstream file;
    torch::serialize::OutputArchive out;
    sampler.save(out);
    out.save_to(file);

    DistributedSampler again = sampler_of_rank(0);
    torch::serialize::InputArchive in;
    in.load_from(file);
    again.load(in);
    again.reset();
    REQUIRE(rest_of(again) == rest_of(sampler));
    again.reset();
    REQUIRE(again.epoch() == 3);
    REQUIRE(again.consumed() == 0);
}

TEST_CASE("a loader gives the sampler's batches, and moves it on by those that it has given") {
    for (const int workers : {0, 1, 3}) {
        DistributedSampler plain = sampler_of_rank(2);
        DistributedSampler sampler = sampler_of_rank(2);
        DataLoader<Numbers> loader(Numbers(), sampler,
                                   {.batch_size = 8, .workers = workers, .prefetch = 4});
        for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
            REQUIRE(sampler.position() == plain.position());
            while (const auto expected = plain.next(8)) {
                const std::optional<Batch> batch = loader.next();
                REQUIRE(batch.has_value());
                REQUIRE(*batch == Batch(expected->begin(), expected->end()));
                REQUIRE(sampler.position() == plain.position());
            }
            REQUIRE_FALSE(loader.next().has_value());
            REQUIRE_FALSE(loader.next().has_value());
            plain.set_epoch(epoch + 1);
            sampler.set_epoch(epoch + 1);
        }
    }
}

TEST_CASE("whatever is made ahead, a loader goes on behind the last batch that was given") {
    for (int given = 0; given <= 5; ++given) {
        DistributedSampler plain = sampler_of_rank(0);
        Batches batches;
        ddprun::SamplerPosition position;
        {
            DistributedSampler sampler = sampler_of_rank(0);
            DataLoader<Numbers> loader(Numbers(), sampler,
                                       {.batch_size = 8, .workers = 2, .prefetch = 2});
            for (int i = 0; i < given; ++i) {
                batches.push_back(*loader.next());
            }
            position = sampler.position();
        }
        DistributedSampler sampler = sampler_of_rank(0);
        DataLoader<Numbers> loader(Numbers(), sampler, {.batch_size = 8, .workers = 2});
        (void)loader.next();  // begun, and then moved
        REQUIRE(sampler.resume(position).has_value());
        for (Batch& batch : rest_of(loader)) {
            batches.push_back(std::move(batch));
        }
        REQUIRE(batches == rest_of(plain));
    }
}

TEST_CASE("what a data set throws comes out of the loader, which then tries that batch again") {
    for (const int workers : {0, 2}) {
        DistributedSampler plain = sampler_of_rank(0);
        const Batches expected = rest_of(plain);
        DistributedSampler sampler = sampler_of_rank(0);
        DataLoader<Numbers> loader(Numbers(expected[1][3]), sampler,
                                   {.batch_size = 8, .workers = workers});
        REQUIRE(*loader.next() == expected[0]);
        REQUIRE_THROWS_WITH(loader.next(),
                            "sample " + std::to_string(expected[1][3]) + " is broken");
        REQUIRE(rest_of(loader) == Batches(expected.begin() + 1, expected.end()));
    }
}

TEST_CASE("a loader's options have bounds") {
    const ddprun::worker::RuntimeLimits limits;
    DistributedSampler sampler = sampler_of_rank(0);
    for (const DataLoaderOptions& bad :
         {DataLoaderOptions{.batch_size = 0}, DataLoaderOptions{.workers = -1},
          DataLoaderOptions{.workers = limits.loader_workers_max + 1},
          DataLoaderOptions{.workers = 2, .prefetch = 0},
          DataLoaderOptions{.workers = 2, .prefetch = limits.loader_batches_max}}) {
        REQUIRE_THROWS_WITH(DataLoader<Numbers>(Numbers(), sampler, bad),
                            Catch::Contains("a data loader"));
    }
}

namespace {

/// Tensors in every kind of nest.
struct Nested {
    torch::Tensor image;
    std::pair<torch::Tensor, std::vector<torch::Tensor>> boxes;
    std::map<std::string, torch::Tensor> by_name;
    std::optional<torch::Tensor> mask;
    std::tuple<int, torch::Tensor> label;
    std::string path;
    torch::data::Example<> example;
    torch::Tensor undefined;
};

}  // namespace

TEST_CASE("every tensor of a batch is pinned, however deep it lies") {
    const auto zero = [] { return torch::zeros({}); };
    Nested batch{.image = zero(),
                 .boxes = {zero(), {zero(), zero()}},
                 .by_name = {{"left", zero()}, {"right", zero()}},
                 .mask = zero(),
                 .label = {7, zero()},
                 .path = "a",
                 .example = {zero(), zero()},
                 .undefined = {}};
    int count = 0;
    ddprun::worker::change_tensors(batch, [&count](const torch::Tensor& tensor) {
        ++count;
        return tensor + 1;
    });
    REQUIRE(count == 10);
    const auto sum = batch.image + batch.boxes.first + batch.boxes.second[1] +
                     batch.by_name.at("right") + *batch.mask + std::get<1>(batch.label) +
                     batch.example.target;
    REQUIRE(sum.item<int>() == 7);
    REQUIRE(std::get<0>(batch.label) == 7);
    REQUIRE_FALSE(batch.undefined.defined());
}

namespace {

struct WithArray {
    torch::Tensor data, target;
    int shape[4] = {};
    torch::Tensor boxes[2];
};

struct WithConst {
    const torch::Tensor data;
    torch::Tensor target;
    int is_flipped : 1;
    torch::Device device = torch::kCPU;
    torch::Tensor mask;
};

struct WithBase : torch::data::Example<> {
    torch::Tensor left_alone;
};

struct TooMany {
    torch::Tensor data, target;
    int a = 0, b = 0, c = 0, d = 0, e = 0, f = 0;
    torch::Tensor left_alone;
};

struct TooLarge {
    torch::Tensor data;
    float table[ddprun::worker::kValuesMax] = {};
    torch::Tensor left_alone;
};

struct Numbered {
    int a, b, c, d, e, f, g, h, i;
};

class Unknown;

struct Owning {
    torch::Tensor first;
    std::unique_ptr<Owning> next;
    std::shared_ptr<Unknown> unknown;
    void (*release)(Unknown*) = nullptr;
};

/// A sample that others know as well.
struct Shared {
    torch::Tensor own;
    std::shared_ptr<torch::Tensor> shared;
    torch::Tensor* raw = nullptr;
    std::shared_ptr<Shared> neighbour;
};

template <typename Batch>
int changes_in(Batch& batch) {
    int count = 0;
    ddprun::worker::change_tensors(batch, [&count](const torch::Tensor& tensor) {
        ++count;
        return tensor + 1;
    });
    return count;
}

}  // namespace

TEST_CASE("a batch is a struct of any fields, of which those that can be told apart are pinned") {
    const auto zero = [] { return torch::zeros({}); };
    WithArray array{
        .data = zero(), .target = zero(), .shape = {1, 2, 3, 4}, .boxes = {zero(), zero()}};
    REQUIRE(changes_in(array) == 4);
    REQUIRE(array.boxes[1].item<int>() == 1);
    WithConst constant{
        .data = zero(), .target = zero(), .is_flipped = 0, .device = torch::kCPU, .mask = zero()};
    REQUIRE(changes_in(constant) == 2);
    REQUIRE(constant.data.item<int>() == 0);
    REQUIRE(constant.mask.item<int>() == 1);
    WithBase base{{zero(), zero()}, zero()};
    REQUIRE(changes_in(base) == 2);
    REQUIRE(base.left_alone.item<int>() == 0);
    TooMany many{.data = zero(), .target = zero(), .left_alone = zero()};
    REQUIRE(changes_in(many) == 2);
    TooLarge large{.data = zero(), .left_alone = zero()};
    REQUIRE(changes_in(large) == 1);
    Numbered numbers{};
    REQUIRE(changes_in(numbers) == 0);
    Owning owning{.first = zero(), .next = std::make_unique<Owning>(), .unknown = nullptr};
    owning.next->first = zero();
    REQUIRE(changes_in(owning) == 2);
    const auto tensor = std::make_shared<torch::Tensor>(zero());
    const auto shared = std::make_shared<Shared>(
        Shared{.own = zero(), .shared = tensor, .raw = tensor.get(), .neighbour = nullptr});
    shared->neighbour = shared;
    REQUIRE(changes_in(*shared) == 1);
    REQUIRE(tensor->item<int>() == 0);
    shared->neighbour = nullptr;
    c10::Dict<std::string, torch::Tensor> dict;
    dict.insert("left alone", zero());
    REQUIRE(changes_in(dict) == 0);
}
