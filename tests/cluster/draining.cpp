// Signals to ddprun: workers are asked to save, and who was signalled leaves.

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <string>

#include "tests/cluster/nodes.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun::test;

namespace {

/// Workers that say which of the two signals they got before they exit 0.
std::vector<std::string> obedient_script(const Cluster& cluster) {
    return {
        "--exit-on-signal",   "15", "0", "--exit-on-signal", "2", "0", "--print", "--wait-for-file",
        cluster.dir() / "end"};
}

}  // namespace

TEST_CASE("a signal to one node drains the group, that node leaves, the rest goes on") {
    const int signal = GENERATE(SIGTERM, SIGINT);
    Cluster cluster;
    const FreePort port;
    Job job;
    job.nnodes = "1:2";
    job.endpoint = port.endpoint();
    job.script = obedient_script(cluster);
    Process& a = start_node(cluster, job);
    a.wait_for_line("^worker .* world=1 ");
    Process& b = start_node(cluster, job);
    a.wait_for_line("^worker .* world=2 ");
    b.wait_for_line("^worker .* world=2 .* generation=2 ");
    b.signal(signal);
    CHECK(b.wait_exit() == 128 + signal);
    a.wait_for_line("^worker .* world=1 .* generation=3 restarts=0 ");
    touch(cluster.dir() / "end");
    CHECK(a.wait_exit() == 0);
    cluster.wait_all_gone();
}

TEST_CASE("when every node is told to leave the run is stopped") {
    Cluster cluster;
    const FreePort port;
    Job job;
    job.endpoint = port.endpoint();
    job.script = obedient_script(cluster);
    Process& a = start_node(cluster, job);
    Process& b = start_node(cluster, job);
    a.wait_for_line(place_in(1));
    b.wait_for_line(place_in(1));
    a.signal(SIGTERM);
    b.signal(SIGTERM);
    CHECK(a.wait_exit() == 128 + SIGTERM);
    CHECK(b.wait_exit() == 128 + SIGTERM);
    cluster.wait_all_gone();
}

TEST_CASE("a signal to all of a job, its rendezvous too, is one drain") {
    Cluster cluster;
    const FreePort port;
    Job job;
    job.endpoint = port.endpoint();
    job.script = obedient_script(cluster);
    Process& a = start_node(cluster, job);
    Process& b = start_node(cluster, job);
    a.wait_for_line(place_in(1));
    b.wait_for_line(place_in(1));
    const pid_t daemon = Cluster::daemon_at(port.port());
    REQUIRE(daemon > 0);
    // As a scheduler does it: the one that the nodes still need may be the first.
    REQUIRE(::kill(daemon, SIGTERM) == 0);
    Process& asking = cluster.start(
        {.argv = {Cluster::program("ddpctl"), "status", "--rdzv-endpoint", port.endpoint()},
         .env = {},
         .cwd = {},
         .name = "ddpctl"});
    CHECK(asking.wait_exit() == 0);
    CHECK(Cluster::daemon_at(port.port()) == daemon);
    a.signal(SIGTERM);
    b.signal(SIGTERM);
    CHECK(a.wait_exit() == 128 + SIGTERM);
    CHECK(b.wait_exit() == 128 + SIGTERM);
    CHECK(a.count_lines("SIGTERM: stopping") + b.count_lines("SIGTERM: stopping") > 0);
    CHECK(a.count_lines("out of reach") + b.count_lines("out of reach") == 0);
    cluster.wait_all_gone();
}

TEST_CASE("plain workers of a single node get that same signal and time to save") {
    const int signal = GENERATE(SIGTERM, SIGINT, SIGHUP);
    Cluster cluster;
    Process& node =
        cluster.start_ddprun({"--nproc-per-node", "2", Cluster::worker(), "--exit-on-signal",
                              std::to_string(signal), "0", "--print", "--hang"});
    node.wait_for_lines("^worker ", 2);
    node.signal(signal);
    CHECK(node.wait_exit() == 128 + signal);
    cluster.wait_all_gone();
}

TEST_CASE("a worker that does not leave is killed after the shutdown timeout") {
    Cluster cluster;
    Process& node =
        cluster.start_ddprun({"--nproc-per-node", "2", "--shutdown-timeout", "1", Cluster::worker(),
                              "--ignore-sigterm", "--print", "--hang"});
    node.wait_for_lines("^worker ", 2);
    node.signal(SIGTERM);
    CHECK(node.wait_exit() == 128 + SIGTERM);
    cluster.wait_all_gone();
}

TEST_CASE("workers are asked to leave before the time limit of their job") {
    Cluster cluster;
    // Half of the four seconds that are left is for leaving.
    const auto end = std::chrono::system_clock::now() + std::chrono::seconds(4);
    const std::string unix_time = std::to_string(std::chrono::system_clock::to_time_t(end));
    Process& node = cluster.start_ddprun({"--nproc-per-node", "2", Cluster::worker(),
                                          "--exit-on-signal", "15", "0", "--print", "--hang"},
                                         {{"SLURM_JOB_ID", "42"},
                                          {"SLURM_STEP_ID", "0"},
                                          {"SLURM_JOB_NODELIST", "here"},
                                          {"SLURMD_NODENAME", "here"},
                                          {"SLURM_JOB_END_TIME", unix_time}});
    node.wait_for_lines("^worker ", 2);
    node.wait_for_line("slurm job 42.0 reaches its time limit in [0-9]+ s: stopping, workers have");
    CHECK(node.wait_exit() == 75);
    cluster.wait_all_gone();
}

TEST_CASE("a worker that does not leave is killed before whoever sent SIGTERM kills") {
    Cluster cluster;
    Process& node =
        cluster.start_ddprun({"--nproc-per-node", "2", "--kill-wait", "1", Cluster::worker(),
                              "--ignore-sigterm", "--print", "--hang"});
    node.wait_for_lines("^worker ", 2);
    node.signal(SIGTERM);
    CHECK(node.wait_exit() == 128 + SIGTERM);
    cluster.wait_all_gone();
}

TEST_CASE("a node that still waits for others can be interrupted") {
    Cluster cluster;
    const FreePort port;
    Job job;
    job.endpoint = port.endpoint();
    job.script = {"--print"};
    Process& node = start_node(cluster, job);
    node.wait_for_line("waiting for 1 node more");
    node.signal(SIGINT);
    CHECK(node.wait_exit() == 128 + SIGINT);
    CHECK(node.count_lines("^worker ") == 0);
    cluster.wait_all_gone();
}

TEST_CASE("SIGUSR1 and SIGUSR2 reach the workers that handle them, and end nobody else") {
    const int signal = GENERATE(SIGUSR1, SIGUSR2);
    Cluster cluster;
    const std::string end = cluster.dir() / "end";
    Process& node =
        cluster.start_ddprun({"--nproc-per-node", "2", Cluster::worker(), "--when-rank", "0",
                              "--tell-signal", std::to_string(signal), "--always", "--say", "ready",
                              "--wait-for-file", end, "--exit-code", "0"});
    node.wait_for_lines("^ready$", 2);
    node.signal(signal);
    node.wait_for_line("^got signal " + std::to_string(signal) + "$");
    touch(end);
    CHECK(node.wait_exit() == 0);
    CHECK(node.count_lines("^got signal") == 1);
    cluster.wait_all_gone();
}
