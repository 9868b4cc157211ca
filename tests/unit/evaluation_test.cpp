// How an evaluation is shared, and the whole of it in a world of one. LibTorch has a
// CHECK of its own: only REQUIRE is used here.

#include "worker_runtime/data/evaluation.hpp"

#include <cstdint>
#include <map>
#include <set>
#include <stdexcept>
#include <string>

#include <torch/torch.h>

#include "tests/support/catch.hpp"

using ddprun::ProcessGroup;

namespace {

ProcessGroup world_of_one() {
    return ProcessGroup::join(ddprun::worker::WorkerEnvironment{}, ddprun::Backend::Gloo).value();
}

}  // namespace

TEST_CASE("in every world each sample counts once and all ranks stay in step") {
    for (std::int64_t size = 1; size <= 13; ++size) {
        for (int world = 1; world <= 6; ++world) {
            for (std::int64_t batch_size = 1; batch_size <= 5; ++batch_size) {
                CAPTURE(size, world, batch_size);
                const std::int64_t batches =
                    ddprun::worker::evaluation_batches(size, world, batch_size);
                std::map<std::int64_t, int> counted;
                for (std::int64_t number = 0; number < batches; ++number) {
                    std::set<std::int64_t> sizes;
                    for (int rank = 0; rank < world; ++rank) {
                        const auto batch =
                            ddprun::worker::evaluation_batch(size, rank, world, batch_size, number);
                        sizes.insert(batch.indices.size(0));
                        REQUIRE(batch.counted >= 0);
                        REQUIRE(batch.counted <= batch.indices.size(0));
                        REQUIRE(batch.indices.min().item<std::int64_t>() >= 0);
                        REQUIRE(batch.indices.max().item<std::int64_t>() < size);
                        for (std::int64_t at = 0; at < batch.counted; ++at) {
                            ++counted[batch.indices[at].item<std::int64_t>()];
                        }
                    }
                    REQUIRE(sizes.size() == 1);
                    REQUIRE(*sizes.begin() >= 1);
                    REQUIRE(*sizes.begin() <= batch_size);
                }
                REQUIRE(counted.size() == static_cast<std::size_t>(size));
                for (const auto& [index, times] : counted) {
                    REQUIRE(times == 1);
                }
            }
        }
    }
}

TEST_CASE("an evaluation sums the judge's values over all samples, without gradients") {
    ProcessGroup group = world_of_one();
    const torch::Tensor weight = torch::ones({1}, torch::requires_grad());
    for (const auto type : {torch::kFloat32, torch::kInt64, torch::kBool}) {
        const auto sums = ddprun::evaluate(group, 10, 4, [&](const torch::Tensor& indices) {
            REQUIRE_FALSE((weight * 2).requires_grad());
            return torch::stack({indices % 2, torch::ones_like(indices)}, 1).to(type);
        });
        REQUIRE(sums.has_value());
        REQUIRE(sums->dtype() == torch::kFloat64);
        REQUIRE(torch::equal(*sums, torch::tensor({5.0, 10.0}, torch::kFloat64)));
    }
    REQUIRE(group.finish().has_value());
}

TEST_CASE("a judge that returns another shape fails the evaluation with both numbers") {
    ProcessGroup group = world_of_one();
    const auto sums = ddprun::evaluate(group, 10, 4, [](const torch::Tensor&) {
        return torch::zeros({3, 1});
    });
    REQUIRE(sums.has_error());
    REQUIRE(sums.error().what.find("given 4 samples and returned a tensor of shape [3, 1]") !=
            std::string::npos);
}

TEST_CASE("a judge that returns more values later fails the evaluation") {
    ProcessGroup group = world_of_one();
    const auto sums = ddprun::evaluate(group, 10, 4, [](const torch::Tensor& indices) {
        return torch::zeros({indices.size(0), indices.size(0)});
    });
    REQUIRE(sums.has_error());
    REQUIRE(sums.error().what.find("2 values per sample, but 4 before") != std::string::npos);
}

TEST_CASE("an exception of the judge becomes the evaluation's error") {
    ProcessGroup group = world_of_one();
    const auto sums = ddprun::evaluate(group, 10, 4, [](const torch::Tensor&) -> torch::Tensor {
        throw std::runtime_error("no such image");
    });
    REQUIRE(sums.has_error());
    REQUIRE(sums.error().what.find("no such image") != std::string::npos);
}

TEST_CASE("there is nothing to evaluate without samples or batches") {
    ProcessGroup group = world_of_one();
    const auto judge = [](const torch::Tensor& indices) { return indices.unsqueeze(1); };
    REQUIRE(ddprun::evaluate(group, 0, 4, judge).has_error());
    REQUIRE(ddprun::evaluate(group, 10, 0, judge).has_error());
}
