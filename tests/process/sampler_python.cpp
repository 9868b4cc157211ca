// Index for index what PyTorch's DistributedSampler gives: its own answers, over a table of cases.

#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"
#include "worker_runtime/data/distributed_sampler.hpp"

using namespace ddprun::test;
using ddprun::DistributedSampler;

namespace {

struct Case {
    std::int64_t size;
    int world;
    std::uint64_t seed;
    std::int64_t epoch;
    bool shuffle;
    bool drop_last;
};

std::vector<Case> cases() {
    std::vector<Case> all;
    for (const std::int64_t size : {1, 2, 3, 7, 16, 100, 1437, 60001}) {
        for (const int world : {1, 2, 3, 4, 8, 13}) {
            for (const bool drop_last : {false, true}) {
                all.push_back({size, world, 0, 0, false, drop_last});
                all.push_back({size, world, 0, 0, true, drop_last});
                all.push_back({size, world, 1, 5, true, drop_last});
                all.push_back({size, world, 123456789012345, 1000000, true, drop_last});
            }
        }
    }
    return all;
}

/// Reads a case per line and writes what every rank gets, a line each.
constexpr const char* kScript = R"(
import sys
from torch.utils.data.distributed import DistributedSampler
for line in open(sys.argv[1]):
    size, world, seed, epoch, shuffle, drop_last = map(int, line.split())
    for rank in range(world):
        sampler = DistributedSampler(range(size), world, rank, bool(shuffle), seed, bool(drop_last))
        sampler.set_epoch(epoch)
        indices = list(sampler)
        # Long lists as what depends on every index and its place.
        if len(indices) > 200:
            mixed = 0
            for index in indices:
                mixed = (mixed * 1000003 + index) % 2147483647
            indices = [len(indices), mixed]
        print(*indices)
)";

std::string expected_form(const std::vector<std::int64_t>& indices) {
    if (indices.size() <= 200) {
        return fmt::format("{}", fmt::join(indices, " "));
    }
    std::uint64_t mixed = 0;
    for (const std::int64_t index : indices) {
        mixed = (mixed * 1000003 + static_cast<std::uint64_t>(index)) % 2147483647;
    }
    return fmt::format("{} {}", indices.size(), mixed);
}

std::vector<std::int64_t> all_batches(DistributedSampler& sampler) {
    std::vector<std::int64_t> indices;
    while (const auto batch = sampler.next_batch(32)) {
        const auto* data = batch->data_ptr<std::int64_t>();
        indices.insert(indices.end(), data, data + batch->numel());
    }
    return indices;
}

}  // namespace

TEST_CASE("the distributed sampler gives index for index what PyTorch's gives") {
    Cluster cluster;
    std::string table;
    for (const Case& c : cases()) {
        table += fmt::format("{} {} {} {} {:d} {:d}\n", c.size, c.world, c.seed, c.epoch, c.shuffle,
                             c.drop_last);
    }
    write_file(cluster.dir() / "cases", table);
    write_file(cluster.dir() / "judge.py", kScript);
    Process& python = cluster.start(
        {.argv = {DDPRUN_TORCH_PYTHON, cluster.dir() / "judge.py", cluster.dir() / "cases"}});
    REQUIRE(python.wait_exit() == 0);
    std::istringstream answers(python.out());
    std::string answer;
    for (const Case& c : cases()) {
        for (int rank = 0; rank < c.world; ++rank) {
            CAPTURE(c.size, c.world, c.seed, c.epoch, c.shuffle, c.drop_last, rank);
            REQUIRE(std::getline(answers, answer));
            DistributedSampler sampler(
                c.size, rank, c.world,
                {.shuffle = c.shuffle, .seed = c.seed, .drop_last = c.drop_last});
            sampler.set_epoch(c.epoch);
            const std::int64_t promised = sampler.samples_per_rank();
            const auto indices = all_batches(sampler);
            REQUIRE(static_cast<std::int64_t>(indices.size()) == promised);
            REQUIRE(expected_form(indices) == answer);
        }
    }
    REQUIRE_FALSE(std::getline(answers, answer));
}
