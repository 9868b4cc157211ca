// Which checkpoint the ranks resume from what their nodes have in memory.

#include <string>
#include <vector>

#include "tests/support/catch.hpp"
#include "worker_runtime/memory/copies.hpp"

using namespace ddprun;
using worker::Manifest;
using worker::MemoryStep;
using worker::NodeCopies;

namespace {

const std::string kSum = "0123456789abcdef0123456789abcdef";
const std::string kOtherSum = "1123456789abcdef0123456789abcdef";

MemoryStep step_of(std::uint64_t generation, std::int64_t step,
                   const std::vector<std::string>& names, const std::string& sum = kSum) {
    MemoryStep found{.generation = Generation(generation), .step = step};
    for (const std::string& name : names) {
        found.files.push_back({.name = name, .size = 8, .xxh3_128 = sum});
    }
    return found;
}

NodeCopies node_with(const std::vector<MemoryStep>& steps) {
    return {.endpoint = "10.0.0.1:1", .steps = steps};
}

Manifest manifest_of(std::uint64_t generation, std::int64_t step,
                     const std::vector<std::string>& names) {
    Manifest manifest;
    manifest.info.generation = Generation(generation);
    manifest.info.step = step;
    for (const std::string& name : names) {
        manifest.files.push_back({.name = name, .size = 8, .xxh3_128 = kSum});
    }
    return manifest;
}

}  // namespace

TEST_CASE("the newest checkpoint is that of the latest generation, then of the highest step") {
    const std::vector<NodeCopies> nodes = {
        node_with({step_of(1, 90, {"manifest.json"}), step_of(2, 40, {"manifest.json"})}),
        node_with({step_of(2, 50, {"manifest.json"}), step_of(1, 90, {"manifest.json"})})};
    const auto candidates = worker::candidates_among(nodes);
    REQUIRE(candidates.size() == 3);
    CHECK(candidates[0].step == 50);
    CHECK(candidates[0].manifest_node == 1);
    CHECK(candidates[1].step == 40);
    CHECK(candidates[2].step == 90);
    CHECK(candidates[2].manifest_node == 0);
}

TEST_CASE("a step without a manifest on any node is no candidate") {
    CHECK(worker::candidates_among({}).empty());
    CHECK(
        worker::candidates_among({node_with({step_of(1, 7, {"model-00001-of-00001.safetensors"})})})
            .empty());
}

TEST_CASE("each file is found on every node that has it") {
    const std::vector<NodeCopies> nodes = {node_with({step_of(3, 7, {"a", "manifest.json"})}),
                                           node_with({step_of(3, 7, {"a", "b"})}),
                                           node_with({step_of(3, 7, {"b"})})};
    const auto holders = worker::holders_of(manifest_of(3, 7, {"a", "b"}), nodes);
    REQUIRE(holders);
    CHECK(*holders == std::vector<std::vector<std::size_t>>{{0, 1}, {1, 2}});
}

TEST_CASE("a file of another step, generation, size or checksum does not count") {
    const Manifest manifest = manifest_of(3, 7, {"a"});
    MemoryStep longer = step_of(3, 7, {"a"});
    longer.files[0].size = 9;
    for (const MemoryStep& step : {step_of(3, 6, {"a"}), step_of(2, 7, {"a"}),
                                   step_of(3, 7, {"a"}, kOtherSum), longer, step_of(3, 7, {"b"})}) {
        const auto holders = worker::holders_of(manifest, {node_with({step})});
        REQUIRE(!holders);
        CHECK(holders.error().what == "no node has a of step 7 in memory");
    }
    CHECK(worker::holders_of(manifest, {node_with({step_of(3, 7, {"a"})})}).has_value());
}
