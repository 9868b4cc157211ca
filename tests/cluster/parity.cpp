// torchrun beside ddprun: parity.py runs the same worker under both and compares all that it can
// see; parity_placement.py asks PyTorch's own functions which CPUs and GPUs a worker would get.

#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/os/unique_fd.hpp"
#include "launcher/plan/gpus.hpp"
#include "launcher/plan/placement.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"
#include "tests/support/places.hpp"
#include "tests/support/torch_python.hpp"

using namespace ddprun;
using namespace ddprun::launcher;
using namespace ddprun::test;

namespace {

/// Which names the differences.
std::string document() {
    return source_dir() + "/docs/torchrun.md";
}

Topology topology_of(const nlohmann::json& cpus) {
    Topology topology;
    for (const nlohmann::json& cpu : cpus) {
        topology.cpus.push_back({.index = cpu["index"],
                                 .is_allowed = cpu["allowed"],
                                 .core = cpu["core"],
                                 .cache = cpu["cache"],
                                 .node = cpu["node"],
                                 .package = cpu["package"]});
    }
    return topology;
}

/// A binding that PyTorch refuses for one GPU is refused for all.
void check_binding(const nlohmann::json& it) {
    const Topology topology = topology_of(it["cpus"]);
    const auto gpu_nodes = it["gpu_nodes"].get<std::vector<int>>();
    const auto workers = static_cast<int>(gpu_nodes.size());
    const auto expected = it["bound"].get<std::vector<std::vector<int>>>();
    bool is_refused = false;
    for (const std::vector<int>& cpus : expected) {
        is_refused = is_refused || cpus.empty();
    }
    const auto bound = bind_workers(*binding_mode(it["mode"].get<std::string>()), topology,
                                    nodes_of_places(gpu_nodes, workers, topology), workers);
    REQUIRE(bound.has_value() == !is_refused);
    if (bound) {
        CHECK(*bound == expected);
    }
}

}  // namespace

TEST_CASE("a worker sees the same under ddprun as under torchrun but for what is documented") {
    if (is_torch_python_there()) {
        CHECK(run_torch_python("cluster/parity.py", {bin_dir(), document()}) == 0);
    }
}

TEST_CASE("every run is the same on a terminal and with 2>&1, but for what is documented",
          "[.full]") {
    if (is_torch_python_there()) {
        CHECK(run_torch_python("cluster/parity.py", {bin_dir(), document(), "--all-consoles"}) ==
              0);
    }
}

TEST_CASE("workers are bound to the CPUs, and GPUs counted, as PyTorch would") {
    if (!is_torch_python_there()) {
        return;
    }
    const TempDir folder;
    const std::string answers = folder / "answers.json";
    REQUIRE(run_torch_python("cluster/parity_placement.py", {"400", "20261121"}, answers) == 0);
    std::ifstream file(answers);
    const nlohmann::json cases = nlohmann::json::parse(file);
    REQUIRE(cases["binding"].size() == 400);
    for (const nlohmann::json& it : cases["binding"]) {
        INFO(it.dump());
        check_binding(it);
    }
    for (const nlohmann::json& it : cases["visible"]) {
        INFO(it.dump());
        std::vector<Gpu> present;
        for (const nlohmann::json& uuid : it["uuids"]) {
            present.push_back(
                {.uuid = uuid.get<std::string>(), .pci_address = {}, .mig_uuids = {}});
        }
        CHECK(visible_gpus(present, it["list"].get<std::string>()).size() == it["count"]);
    }
}
