// Whole jobs on the oldest kernel that is promised, Linux 4.18. Method: a filter denies ddprun, and
// all that it starts, the system calls that came later.

#include "tests/support/old_kernel.hpp"

#include <string>
#include <vector>

#include "tests/cluster/nodes.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"
#include "tests/support/places.hpp"

using namespace ddprun::test;

namespace {

/// In generation 1 rank 1 fails and the others stay; in generation 2 all exit 0.
const std::vector<std::string> kFailsOnce = {
    "--print",  "--before-generation", "2", "--when-rank", "1", "--exit-code", "7",
    "--always", "--before-generation", "2", "--hang"};

Process& start_on_old_kernel(Cluster& cluster, const std::vector<std::string>& args) {
    std::vector<std::string> argv = {bin_dir() + "/../tests/ddprun_test_old_kernel",
                                     Cluster::program("ddprun"), "--log-dir",
                                     cluster.dir() / "logs"};
    argv.insert(argv.end(), args.begin(), args.end());
    return cluster.start({.argv = std::move(argv), .env = {}, .cwd = {}, .name = {}});
}

bool is_left_out(int exit_code) {
    if (exit_code == kNoFilter) {
        WARN("LEFT OUT: this machine allows no seccomp filter");
    }
    return exit_code == kNoFilter;
}

}  // namespace

TEST_CASE("on Linux 4.18 a job whose worker fails once starts again and succeeds") {
    const std::string containment = GENERATE("keeper", "session");
    Cluster cluster;
    std::vector<std::string> args = {"--containment",    containment, "--max-restarts", "1",
                                     "--nproc-per-node", "2",         Cluster::worker()};
    args.insert(args.end(), kFailsOnce.begin(), kFailsOnce.end());
    Process& node = start_on_old_kernel(cluster, args);
    const int exit_code = node.wait_exit();
    if (is_left_out(exit_code)) {
        return;
    }
    INFO(node.text());
    CHECK(exit_code == 0);
    CHECK(node.count_lines("rank 1 on .* exited with code 7") >= 1);
    CHECK(node.count_lines("^worker .* world=2 .* generation=2 restarts=1 max_restarts=1 ") == 2);
    cluster.wait_all_gone();
}

TEST_CASE("on Linux 4.18 two nodes meet, start again after a failure and leave nothing behind") {
    Cluster cluster;
    const FreePort port;
    Job job;
    job.endpoint = port.endpoint();
    job.flags = {"--containment", "keeper", "--max-restarts", "1"};
    job.script = kFailsOnce;
    Process& a = start_on_old_kernel(cluster, node_args(job));
    Process& b = start_on_old_kernel(cluster, node_args(job));
    for (Process* node : {&a, &b}) {
        const int exit_code = node->wait_exit();
        if (is_left_out(exit_code)) {
            return;
        }
        INFO(node->text());
        CHECK(exit_code == 0);
        CHECK(node->count_lines("^worker .* generation=2 restarts=1 max_restarts=1 ") == 1);
    }
    cluster.wait_all_gone();
}
