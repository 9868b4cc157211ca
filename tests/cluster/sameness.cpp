// Nodes that do not run the same: an old copy of the program on one of them.

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/cluster/nodes.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun::test;

namespace {

namespace fs = std::filesystem;

/// A node whose copy of the test worker has `ending` behind it.
Process& start_with_copy(Cluster& cluster, const Job& job, const std::string& name,
                         const std::string& ending) {
    const std::string copy = cluster.dir() / ("worker-" + name);
    fs::copy_file(Cluster::worker(), copy);
    std::ofstream(copy, std::ios::app | std::ios::binary) << ending;
    std::vector<std::string> args = node_args(job, {"--node-id", name});
    for (std::string& arg : args) {
        arg = arg == Cluster::worker() ? copy : arg;
    }
    return cluster.start_ddprun(args);
}

}  // namespace

TEST_CASE("an old copy of the program on one node is told once, with both nodes and hashes") {
    Cluster cluster;
    const FreePort port;
    const bool is_old = GENERATE(true, false);
    Job job;
    job.endpoint = port.endpoint();
    job.flags = {"--max-restarts", "1"};
    job.script = {"--print",  "--before-generation", "2", "--exit-code", "3",
                  "--always", "--exit-code",         "0"};
    Process& a = start_with_copy(cluster, job, "a", "new");
    Process& b = start_with_copy(cluster, job, "b", is_old ? "old" : "new");
    CHECK(a.wait_exit() == 0);
    CHECK(b.wait_exit() == 0);
    const std::string line =
        "warning: program differs: .+ has [0-9a-f]{16}, .+ has [0-9a-f]{16}; copy the same file";
    CHECK(a.count_lines(line) + b.count_lines(line) == (is_old ? 1 : 0));
    CHECK(a.count_lines("differs") + b.count_lines("differs") >= (is_old ? 1 : 0));
    cluster.wait_all_gone();
}

TEST_CASE("with --same strict an old copy is refused with 2 and what to do; a new one goes on") {
    Cluster cluster;
    const FreePort port;
    Job job;
    job.endpoint = port.endpoint();
    job.flags = {"--same", "strict"};
    job.script = {"--print", "--exit-code", "0"};
    Process& a = start_with_copy(cluster, job, "a", "new");
    a.wait_for_line("waiting for 1 node more");
    Process& old = start_with_copy(cluster, job, "b", "old");
    CHECK(old.wait_exit() == 2);
    CHECK(old.count_lines("join refused: program differs: .+ has [0-9a-f]{16}, .+ has "
                          "[0-9a-f]{16}, and the job was started with --same strict; copy the same "
                          "file to both, or start all nodes with --same warn") == 1);
    Process& mended = start_with_copy(cluster, job, "c", "new");
    CHECK(a.wait_exit() == 0);
    CHECK(mended.wait_exit() == 0);
    cluster.wait_all_gone();
}

TEST_CASE("with --same off nobody looks") {
    Cluster cluster;
    const FreePort port;
    Job job;
    job.endpoint = port.endpoint();
    job.flags = {"--same", "off"};
    job.script = {"--print", "--exit-code", "0"};
    Process& a = start_with_copy(cluster, job, "a", "new");
    Process& b = start_with_copy(cluster, job, "b", "old");
    CHECK(a.wait_exit() == 0);
    CHECK(b.wait_exit() == 0);
    CHECK(a.count_lines("differs") + b.count_lines("differs") == 0);
    cluster.wait_all_gone();
}
