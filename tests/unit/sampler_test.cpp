// The sampler's own promises. That it gives what PyTorch's gives is tested against PyTorch itself
// in tests/process/sampler_python.cpp. LibTorch has a CHECK of its own: only REQUIRE is used here.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"
#include "worker_runtime/data/distributed_sampler.hpp"

using ddprun::DistributedSampler;
using ddprun::DistributedSamplerOptions;
using ddprun::SamplerPosition;

namespace {

std::vector<std::int64_t> numbers(const torch::Tensor& tensor) {
    return {tensor.data_ptr<std::int64_t>(), tensor.data_ptr<std::int64_t>() + tensor.numel()};
}

/// All samplers of a world, stepped together as the ranks of a training are.
class World {
public:
    World(std::int64_t size, int world_size, DistributedSamplerOptions options) {
        for (int rank = 0; rank < world_size; ++rank) {
            samplers_.emplace_back(size, rank, world_size, options);
        }
    }

    void set_epoch(std::int64_t epoch) {
        for (DistributedSampler& sampler : samplers_) {
            sampler.set_epoch(epoch);
        }
    }

    void resume(const SamplerPosition& position) {
        for (DistributedSampler& sampler : samplers_) {
            REQUIRE(sampler.resume(position).has_value());
        }
    }

    /// The batches of all ranks, rank after rank; none at the end of the epoch.
    std::optional<std::vector<std::int64_t>> step(std::int64_t batch_size) {
        std::vector<std::int64_t> taken;
        std::set<std::size_t> sizes;
        for (DistributedSampler& sampler : samplers_) {
            const auto batch = sampler.next_batch(batch_size);
            sizes.insert(batch ? static_cast<std::size_t>(batch->size(0)) : 0);
            if (batch) {
                const auto more = numbers(*batch);
                taken.insert(taken.end(), more.begin(), more.end());
            }
        }
        REQUIRE(sizes.size() == 1);  // all ranks in step
        for (const DistributedSampler& sampler : samplers_) {
            REQUIRE(sampler.position() == position());
        }
        return taken.empty() ? std::nullopt : std::optional(taken);
    }

    /// Steps until the epoch is over; what each step gave.
    std::vector<std::vector<std::int64_t>> rest(std::int64_t batch_size) {
        std::vector<std::vector<std::int64_t>> steps;
        while (const auto taken = step(batch_size)) {
            steps.push_back(*taken);
        }
        return steps;
    }

    [[nodiscard]] SamplerPosition position() const { return samplers_.front().position(); }

private:
    std::vector<DistributedSampler> samplers_;
};

std::set<std::int64_t> all_of(const std::vector<std::vector<std::int64_t>>& steps) {
    std::set<std::int64_t> all;
    for (const auto& taken : steps) {
        all.insert(taken.begin(), taken.end());
    }
    return all;
}

struct Case {
    std::int64_t size;
    int world;
    std::int64_t batch;
    bool drops;
};

std::vector<Case> cases() {
    std::vector<Case> all;
    for (const std::int64_t size : {1, 2, 3, 5, 8, 13, 24}) {
        for (const int world : {1, 2, 3, 4, 7}) {
            for (const std::int64_t batch : {1, 2, 3, 32}) {
                for (const bool drops : {false, true}) {
                    all.push_back({size, world, batch, drops});
                }
            }
        }
    }
    return all;
}

}  // namespace

TEST_CASE("an epoch resumed after any step by as many workers goes on as if never interrupted") {
    for (const Case& c : cases()) {
        CAPTURE(c.size, c.world, c.batch, c.drops);
        const DistributedSamplerOptions options{.seed = 7, .drop_last = c.drops};
        World whole(c.size, c.world, options);
        whole.set_epoch(3);
        const auto steps = whole.rest(c.batch);
        World first(c.size, c.world, options);
        first.set_epoch(3);
        for (std::size_t done = 0; done <= steps.size(); ++done) {
            World second(c.size, c.world, options);
            second.resume(first.position());
            REQUIRE(second.position() == first.position());
            REQUIRE(second.rest(c.batch) ==
                    std::vector(steps.begin() + static_cast<std::ptrdiff_t>(done), steps.end()));
            REQUIRE(second.position() == whole.position());
            first.step(c.batch);
        }
    }
}

TEST_CASE("the rest of an epoch is shared by another number of workers, nothing twice or lost") {
    for (const Case& c : cases()) {
        for (const int other : {1, 2, 3, 5}) {
            CAPTURE(c.size, c.world, c.batch, c.drops, other);
            if (other == c.world) {
                continue;
            }
            const DistributedSamplerOptions options{.seed = 7, .drop_last = c.drops};
            World first(c.size, c.world, options);
            std::set<std::int64_t> seen;
            while (const auto taken = first.step(c.batch)) {
                seen.insert(taken->begin(), taken->end());
                World second(c.size, other, options);
                second.resume(first.position());
                const auto left = all_of(second.rest(c.batch));
                for (const std::int64_t index : left) {
                    REQUIRE(seen.count(index) == 0);
                }
                const auto count = static_cast<std::int64_t>(seen.size() + left.size());
                if (!c.drops) {
                    REQUIRE(count == c.size);
                } else if (!left.empty()) {
                    REQUIRE(count > c.size - other);
                }
            }
            World over(c.size, other, options);
            over.resume(first.position());
            REQUIRE_FALSE(over.step(c.batch).has_value());
        }
    }
}

TEST_CASE("an epoch may change hands several times") {
    const DistributedSamplerOptions options{.seed = 11};
    std::vector<std::vector<std::int64_t>> steps;
    SamplerPosition position{.epoch = 2};
    for (const int world : {4, 3, 3, 1, 2}) {
        World workers(101, world, options);
        workers.resume(position);
        for (int step = 0; step < 2; ++step) {
            steps.push_back(*workers.step(3));
        }
        position = workers.position();
    }
    World last(101, 5, options);
    last.resume(position);
    std::size_t count = 0;
    for (const auto& taken : steps) {
        count += taken.size();
    }
    REQUIRE(all_of(steps).size() == count);
    const auto left = all_of(last.rest(3));
    REQUIRE(left.size() + count == 101);
    REQUIRE(last.position().consumed >= 101);
    last.set_epoch(3);
    REQUIRE(all_of(last.rest(7)).size() == 101);
}

TEST_CASE("what a sampler tells of its progress adds up") {
    DistributedSampler sampler(10, 1, 4, {.shuffle = false});
    REQUIRE(sampler.samples_per_rank() == 3);
    REQUIRE(sampler.samples_left() == 3);
    REQUIRE((numbers(*sampler.next_batch(2)) == std::vector<std::int64_t>{1, 5}));
    REQUIRE(sampler.samples_left() == 1);
    REQUIRE(sampler.consumed() == 8);
    REQUIRE(numbers(*sampler.next_batch(2)) == std::vector<std::int64_t>{9});
    REQUIRE_FALSE(sampler.next_batch(2).has_value());
    REQUIRE(sampler.consumed() == 12);
    sampler.set_epoch(9);
    REQUIRE(sampler.epoch() == 9);
    REQUIRE(sampler.consumed() == 0);
}

TEST_CASE("a position survives being written down") {
    const SamplerPosition position{
        .epoch = INT64_MAX, .consumed = 1438, .split_start = 96, .world_size = 4};
    REQUIRE(position.text() == "9223372036854775807 1438 96 4");
    REQUIRE(SamplerPosition::parse(position.text()).value() == position);
    for (const char* bad : {"", "1", "1 2 3", "1 2 3 4 5", "1 2 3 4 ", " 1 2 3 4", "1  2 3 4",
                            "a 2 3 4", "-1 2 3 4", "1 2 3 99999999999", "1,2,3,4"}) {
        CAPTURE(bad);
        REQUIRE_FALSE(SamplerPosition::parse(bad).has_value());
    }
}

TEST_CASE("a position tells what its order comes of, and one that does not is taken as well") {
    const SamplerPosition position =
        DistributedSampler(10, 0, 2, {.shuffle = false, .seed = 18446744073709551615U}).position();
    REQUIRE(position.text() == "0 0 0 2 10 18446744073709551615 0 0");
    REQUIRE(SamplerPosition::parse(position.text()).value() == position);
    for (const char* bad : {"0 0 0 2 10", "0 0 0 2 10 5", "0 0 0 2 10 5 1", "0 0 0 2 10 5 2 0",
                            "0 0 0 2 10 5 1 0 ", "0 0 0 2 10 -5 1 0", "0 0 0 2 10 5 1 0 1"}) {
        CAPTURE(bad);
        REQUIRE_FALSE(SamplerPosition::parse(bad).has_value());
    }
    REQUIRE(DistributedSampler(10, 0, 2).resume({.consumed = 4, .world_size = 2}).has_value());
}

TEST_CASE("a position in another order of samples is refused, and both are named") {
    DistributedSampler written(100, 0, 2, {.seed = 5});
    (void)written.next_batch(3);
    const SamplerPosition position = SamplerPosition::parse(written.position().text()).value();
    struct Other {
        std::int64_t size;
        DistributedSamplerOptions options;
        std::string text;
    };
    for (const Other& other : {
             Other{101, {.seed = 5}, "101 samples, shuffled with seed 5, drop_last false"},
             Other{100, {.seed = 6}, "100 samples, shuffled with seed 6, drop_last false"},
             Other{100, {.shuffle = false, .seed = 5}, "100 samples, not shuffled, drop_last fal"},
             Other{100, {.seed = 5, .drop_last = true}, "shuffled with seed 5, drop_last true"},
         }) {
        DistributedSampler sampler(other.size, 0, 2, other.options);
        const SamplerPosition before = sampler.position();
        const auto resumed = sampler.resume(position);
        REQUIRE(resumed.has_error());
        CAPTURE(resumed.error().what);
        REQUIRE(resumed.error().what.find("one in 100 samples, shuffled with seed 5, drop_last "
                                          "false") != std::string::npos);
        REQUIRE(resumed.error().what.find(other.text) != std::string::npos);
        REQUIRE(sampler.position() == before);
    }
    // A seed that shuffles nothing is no difference.
    const SamplerPosition plain =
        DistributedSampler(10, 0, 2, {.shuffle = false, .seed = 1}).position();
    REQUIRE(DistributedSampler(10, 0, 2, {.shuffle = false, .seed = 2}).resume(plain).has_value());
}

TEST_CASE("a position that no run over this data can have is refused and changes nothing") {
    DistributedSampler sampler(10, 0, 2, {.seed = 5});
    (void)sampler.next_batch(2);
    const SamplerPosition before = sampler.position();
    for (const SamplerPosition& bad : {
             SamplerPosition{.consumed = 12, .world_size = 2},  // beyond the end
             SamplerPosition{.consumed = 3, .world_size = 2},   // ranks out of step
             SamplerPosition{.consumed = -2, .world_size = 2},
             SamplerPosition{.epoch = -1, .world_size = 2},
             SamplerPosition{.consumed = 2, .split_start = 4, .world_size = 2},
             SamplerPosition{.consumed = 12, .split_start = 12, .world_size = 2},
             SamplerPosition{.consumed = 4, .world_size = 0},
         }) {
        CAPTURE(bad.text());
        const auto resumed = sampler.resume(bad);
        REQUIRE(resumed.has_error());
        REQUIRE(resumed.error().what.find("an epoch of 10 samples") != std::string::npos);
        REQUIRE(sampler.position() == before);
    }
}
