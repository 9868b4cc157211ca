// Which checkpoint the ranks resume from what their nodes have in memory.

#include <string>
#include <vector>

#include "tests/support/catch.hpp"
#include "worker_runtime/memory/agreement.hpp"
#include "worker_runtime/memory/copies.hpp"

using namespace ddprun;
using worker::Manifest;
using worker::MemoryStep;
using worker::NodeCopies;
using worker::StepKey;

namespace {

const std::string kSum = "0123456789abcdef0123456789abcdef";
const std::string kOtherSum = "1123456789abcdef0123456789abcdef";

MemoryStep step_of(std::uint64_t generation, std::int64_t step,
                   const std::vector<std::string>& names, const std::string& sum = kSum) {
    MemoryStep found{.key = {.generation = Generation(generation), .step = step}};
    for (const std::string& name : names) {
        found.files.push_back({.name = name, .size = 8, .xxh3_128 = sum});
    }
    return found;
}

NodeCopies node_with(const std::vector<MemoryStep>& steps) {
    return {.endpoint = "10.0.0.1:1", .steps = steps};
}

StepKey key_of(std::uint64_t generation, std::int64_t step) {
    return {.generation = Generation(generation), .step = step};
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
    CHECK(candidates[0].key.step == 50);
    CHECK(candidates[0].manifest_node == 1);
    CHECK(candidates[1].key.step == 40);
    CHECK(candidates[2].key.step == 90);
    CHECK(candidates[2].manifest_node == 0);
}

TEST_CASE("a later save of a step is newer, and has files of its own") {
    MemoryStep again = step_of(1, 7, {"a", "manifest.json"}, kOtherSum);
    again.key.save = 2;
    const std::vector<NodeCopies> nodes = {node_with({step_of(1, 7, {"a", "manifest.json"})}),
                                           node_with({again})};
    const auto candidates = worker::candidates_among(nodes);
    REQUIRE(candidates.size() == 2);
    CHECK(candidates[0].key == again.key);
    CHECK(candidates[0].manifest_node == 1);
    CHECK(candidates[0].manifest.xxh3_128 == kOtherSum);
    CHECK(candidates[1].manifest_node == 0);
    const Manifest manifest = manifest_of(1, 7, {"a"});
    CHECK(worker::holders_of(candidates[1].key, manifest, nodes).has_value());
    CHECK(!worker::holders_of(candidates[0].key, manifest, nodes));
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
    const auto holders = worker::holders_of(key_of(3, 7), manifest_of(3, 7, {"a", "b"}), nodes);
    REQUIRE(holders);
    CHECK(*holders == std::vector<std::vector<std::size_t>>{{0, 1}, {1, 2}});
}

TEST_CASE("a file of another step, generation, size or checksum does not count") {
    const Manifest manifest = manifest_of(3, 7, {"a"});
    MemoryStep longer = step_of(3, 7, {"a"});
    longer.files[0].size = 9;
    for (const MemoryStep& step : {step_of(3, 6, {"a"}), step_of(2, 7, {"a"}),
                                   step_of(3, 7, {"a"}, kOtherSum), longer, step_of(3, 7, {"b"})}) {
        const auto holders = worker::holders_of(key_of(3, 7), manifest, {node_with({step})});
        REQUIRE(!holders);
        CHECK(holders.error().what == "no node has a of step 7 in memory");
    }
    CHECK(worker::holders_of(key_of(3, 7), manifest, {node_with({step_of(3, 7, {"a"})})})
              .has_value());
}

TEST_CASE("a step that is older than the disk's is no candidate") {
    const std::vector<NodeCopies> nodes = {
        node_with({step_of(1, 90, {"manifest.json"}), step_of(2, 40, {"manifest.json"})})};
    const auto candidates = worker::candidates_among(nodes, {.step = 41});
    REQUIRE(candidates.size() == 1);
    CHECK(candidates[0].key.step == 90);
    CHECK(worker::candidates_among(nodes, {.step = 40}).size() == 2);
    CHECK(worker::candidates_among(nodes, {.step = 91}).empty());
}

TEST_CASE("an earlier save of the disk's step is no candidate") {
    MemoryStep again = step_of(1, 7, {"manifest.json"});
    again.key.save = 2;
    const std::vector<NodeCopies> nodes = {node_with({step_of(1, 7, {"manifest.json"}), again})};
    const auto candidates = worker::candidates_among(nodes, {.step = 7, .save = 2});
    REQUIRE(candidates.size() == 1);
    CHECK(candidates[0].key.save == 2);
    CHECK(worker::candidates_among(nodes, {.step = 7, .save = 3}).empty());
    CHECK(worker::candidates_among(nodes, {.step = 6, .save = 3}).size() == 2);
}

TEST_CASE("a manifest of another step or generation is not the candidate's") {
    const worker::MemoryCandidate candidate{
        .key = {.generation = Generation(2), .step = 40, .save = 6}};
    const auto text_of = [](std::uint64_t generation, std::int64_t step) {
        return *worker::format_manifest(manifest_of(generation, step, {}));
    };
    const auto found = worker::manifest_of(candidate, text_of(2, 40));
    REQUIRE(found);
    CHECK(found->info.save == 6);
    CHECK(worker::manifest_of(candidate, text_of(2, 41)).error().what ==
          "its manifest is of step 41 of generation 2");
    CHECK(!worker::manifest_of(candidate, text_of(3, 40)));
    CHECK(!worker::manifest_of(candidate, "{}"));
}

TEST_CASE("the ranks of a node share out the files that it lacks, and ask several nodes") {
    // Nodes of two ranks, of which the last two have nothing.
    const std::vector<std::string> names = {"a", "b", "c"};
    std::vector<NodeCopies> nodes(8);
    nodes[0] = node_with({step_of(1, 7, {"a", "b", "c"})});
    nodes[2] = node_with({step_of(1, 7, {"b", "c"})});
    const Manifest manifest = manifest_of(1, 7, names);
    const auto of = [&](int rank) {
        return *worker::fetches_of(key_of(1, 7), manifest, nodes,
                                   {.rank = rank, .local_rank = rank % 2, .local_world_size = 2});
    };
    using Fetches = std::vector<worker::MemoryFetch>;
    CHECK(of(0).empty());
    CHECK(of(1).empty());
    CHECK(of(2) == Fetches{{.file = 0, .node = 0}});
    CHECK(of(3).empty());
    CHECK(of(4) == Fetches{{.file = 0, .node = 0}, {.file = 2, .node = 0}});
    CHECK(of(5) == Fetches{{.file = 1, .node = 0}});
    CHECK(of(6) == Fetches{{.file = 0, .node = 0}, {.file = 2, .node = 2}});
    CHECK(of(7) == Fetches{{.file = 1, .node = 2}});
    CHECK(!worker::fetches_of(key_of(1, 7), manifest_of(1, 7, {"d"}), nodes, {.rank = 4}));
}

TEST_CASE("checkpoints are kept in memory when every rank has a connection") {
    const auto rank = [](int node, const std::string& endpoint) {
        return worker::text_of({.has_memory = true, .endpoint = endpoint, .group_rank = node});
    };
    const std::vector<std::string> all = {rank(0, "10.0.0.1:1"), rank(1, "10.0.0.2:2")};
    const worker::MemoryAgreement kept = worker::agreement_of(all, 1);
    CHECK(kept.is_kept);
    CHECK(kept.endpoint == "10.0.0.2:2");
    CHECK(kept.line.empty());
    CHECK(worker::agreement_of(all, {}).endpoint.empty());

    const std::string without = worker::text_of({.group_rank = 1, .why = "no \xff answer"});
    const worker::MemoryAgreement some = worker::agreement_of({all[0], without}, {});
    CHECK(!some.is_kept);
    CHECK_THAT(some.line, Catch::Contains("saves go to the disk only: rank 1: no "));
    // All ranks may have the same problem.
    CHECK(worker::agreement_of({without, without}, {}).line.find("rank 0: no ") !=
          std::string::npos);

    const std::string unasked = worker::text_of({.group_rank = 1, .why = worker::kNoMemory});
    CHECK_THAT(worker::agreement_of({all[0], unasked}, {}).line,
               Catch::Contains("give every node --memory-checkpoints"));
    const worker::MemoryAgreement none = worker::agreement_of({unasked, unasked}, {});
    CHECK(!none.is_kept);
    CHECK(none.line.empty());
}

TEST_CASE("a node whose files are not known is named") {
    worker::MemoryReply lost;
    lost.note = "ddprun-memory has ended";
    const auto nodes = worker::nodes_of({encode(worker::MemoryReply()), encode(lost)});
    REQUIRE(nodes.has_value());
    CHECK_THAT(worker::unlisted_line(*nodes),
               Catch::Contains("rank 1: ") && Catch::Contains(": ddprun-memory has ended"));
    CHECK(worker::unlisted_line({node_with({})}).empty());
}
