// The page that an agent shares with workers that read it: drains, progress, isolation.

#include <signal.h>

#include <string>

#include "tests/cluster/nodes.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun::test;

TEST_CASE("workers that look at the page are asked there, get no signal and leave with 75") {
    const int signal = GENERATE(SIGTERM, SIGINT);
    Cluster cluster;
    Process& node =
        cluster.start_ddprun({"--nproc-per-node", "2", Cluster::worker(), "--tell-signal",
                              std::to_string(signal), "--attach-page", "--leave-when-asked"});
    node.wait_for_lines("^attached ", 2);
    node.signal(signal);
    CHECK(node.wait_exit() == 128 + signal);
    CHECK(node.count_lines("^asked signal=" + std::to_string(signal) + "$") == 2);
    CHECK(node.count_lines("^got signal") == 0);
    CHECK(node.count_lines("failed|exited with code") == 0);
    cluster.wait_all_gone();
}

TEST_CASE("a plain worker beside one that looks at the page is signalled as ever") {
    Cluster cluster;
    Process& node =
        cluster.start_ddprun({"--nproc-per-node", "2", Cluster::worker(), "--when-rank", "0",
                              "--tell-signal", "15", "--attach-page", "--leave-when-asked",
                              "--always", "--exit-on-signal", "15", "0", "--print", "--hang"});
    node.wait_for_line("^attached local_rank=0");
    node.wait_for_line("^worker rank=1 ");
    node.signal(SIGTERM);
    CHECK(node.wait_exit() == 128 + SIGTERM);
    CHECK(node.count_lines("^asked signal=15$") == 1);
    CHECK(node.count_lines("^got signal") == 0);
    cluster.wait_all_gone();
}

TEST_CASE("a worker that is asked and stays is killed after the shutdown timeout") {
    Cluster cluster;
    Process& node = cluster.start_ddprun({"--shutdown-timeout", "1", Cluster::worker(),
                                          "--tell-signal", "15", "--attach-page", "--hang"});
    node.wait_for_line("^attached ");
    node.signal(SIGTERM);
    CHECK(node.wait_exit() == 128 + SIGTERM);
    CHECK(node.count_lines("^got signal") == 0);
    cluster.wait_all_gone();
}

TEST_CASE("after a failure workers that look at the page are signalled like all others") {
    Cluster cluster;
    const std::string fail = cluster.dir() / "fail";
    const std::string end = cluster.dir() / "end";
    Process& node = cluster.start_ddprun({"--nproc-per-node",
                                          "2",
                                          "--failure-grace",
                                          "60",
                                          "--shutdown-timeout",
                                          "60",
                                          Cluster::worker(),
                                          "--when-rank",
                                          "0",
                                          "--tell-signal",
                                          "15",
                                          "--attach-page",
                                          "--wait-for-file",
                                          end,
                                          "--always",
                                          "--when-rank",
                                          "1",
                                          "--wait-for-file",
                                          fail,
                                          "--exit-code",
                                          "9"});
    node.wait_for_line("^attached ");
    touch(fail);
    node.wait_for_line("^got signal 15$");
    touch(end);
    CHECK(node.wait_exit() == 9);
    cluster.wait_all_gone();
}

TEST_CASE("the report of a crash tells the last step that the worker had told") {
    Cluster cluster;
    Process& node =
        cluster.start_ddprun({Cluster::worker(), "--attach-page", "--progress", "17", "--progress",
                              "4812", "--crash", std::to_string(SIGSEGV)});
    CHECK(node.wait_exit() == 128 + SIGSEGV);
    CHECK(node.count_lines("^  last step  4812$") == 1);
    cluster.wait_all_gone();
}

TEST_CASE("the report of a crash of a worker that told no step says nothing about steps") {
    Cluster cluster;
    Process& node = cluster.start_ddprun({Cluster::worker(), "--exit-code", "3"});
    CHECK(node.wait_exit() == 3);
    CHECK(node.count_lines("last step") == 0);
    cluster.wait_all_gone();
}

TEST_CASE("workers learn this node's address, the page's path and why they were started") {
    Cluster cluster;
    Process& node =
        cluster.start_ddprun({"--max-restarts", "1", Cluster::worker(), "--variable",
                              "DDPRUN_LOCAL_ADDR", "--variable", "DDPRUN_PAGE", "--variable",
                              "DDPRUN_START_REASON", "--when-generation", "1", "--exit-code", "7"});
    CHECK(node.wait_exit() == 0);
    const std::string page = "^DDPRUN_PAGE=/proc/[0-9]+/fd/[0-9]+$";
    CHECK(node.count_lines(page) == 2);
    CHECK(node.count_lines("^DDPRUN_LOCAL_ADDR=127\\.0\\.0\\.1$") == 2);
    CHECK(node.count_lines("^DDPRUN_START_REASON=$") == 1);
    CHECK(node.count_lines("^DDPRUN_START_REASON=rank 0 on .* exited with code 7; its last line on "
                           "stdout: .*; logs in /.*$") == 1);
    cluster.wait_all_gone();
}

TEST_CASE("when the job grows, workers that look at the page leave without a signal") {
    Cluster cluster;
    const FreePort port;
    Job job;
    job.nnodes = "1:2";
    job.endpoint = port.endpoint();
    job.script = {"--tell-signal",       "15", "--attach-page",     "--print",
                  "--before-generation", "2",  "--leave-when-asked"};
    Process& a = start_node(cluster, job);
    a.wait_for_line(place_in(1));
    Process& b = start_node(cluster, job);
    CHECK(a.wait_exit() == 0);
    CHECK(b.wait_exit() == 0);
    CHECK(a.count_lines("^asked signal=15$") == 1);
    CHECK(a.count_lines("^got signal") == 0);
    CHECK(a.count_lines("^worker .* world=2 .* generation=2 restarts=0 ") == 1);
    CHECK(b.count_lines("^worker .* world=2 .* generation=2 restarts=0 ") == 1);
    cluster.wait_all_gone();
}

TEST_CASE("workers are isolated while the rendezvous does not answer") {
    Cluster cluster;
    const Cluster::Daemon daemon = cluster.start_daemon();
    Job job;
    job.nnodes = "1";
    job.endpoint = daemon.endpoint;
    job.script = {"--attach-page", "--wait-for-isolation", "1", "--say",
                  "isolated",      "--wait-for-isolation", "0", "--say",
                  "sure again"};
    Process& node = start_node(cluster, job);
    node.wait_for_line("^attached ");
    daemon.process.signal(SIGSTOP);
    node.wait_for_line("^isolated$");
    CHECK(node.count_lines("^sure again$") == 0);
    daemon.process.signal(SIGCONT);
    CHECK(node.wait_exit() == 0);
    CHECK(node.count_lines("^sure again$") == 1);
    daemon.process.signal(SIGTERM);
    CHECK(daemon.process.wait_exit() == 0);
    cluster.wait_all_gone();
}

TEST_CASE("a worker whose agent is stopped knows by itself that it may be replaced") {
    Cluster cluster;
    const FreePort port;
    const std::string stopped = cluster.dir() / "stopped";
    const std::string end = cluster.dir() / "end";
    Job job;
    job.nnodes = "1:2";
    job.endpoint = port.endpoint();
    // Generation 2 is that of both nodes, before one of them is stopped.
    job.script = {"--exit-on-signal",
                  "15",
                  "0",
                  "--when-generation",
                  "2",
                  "--attach-page",
                  "--wait-for-isolation",
                  "0",
                  "--always",
                  "--print",
                  "--when-generation",
                  "2",
                  "--wait-for-file",
                  stopped,
                  "--wait-for-isolation",
                  "1",
                  "--touch",
                  cluster.dir() / "isolated-{pid}",
                  "--hang",
                  "--always",
                  "--wait-for-file",
                  end};
    Process& a = start_node(cluster, job);
    a.wait_for_line(place_in(1));
    Process& b = start_node(cluster, job);
    a.wait_for_line(place_in(2));
    const std::string held = b.wait_for_line(place_in(2));
    const ddprun::UniqueFd worker = Cluster::watch(field(held, "pid"));

    b.signal(SIGSTOP);
    touch(stopped);
    // A line of the worker itself would have to pass through its agent, which is stopped.
    StartOptions look;
    look.argv = {Cluster::worker(), "--wait-for-file",
                 cluster.dir() / ("isolated-" + std::to_string(field(held, "pid"))), "--say",
                 "isolated"};
    Process& witness = cluster.start(look);
    witness.wait_for_line("^isolated$");
    CHECK(witness.wait_exit() == 0);
    a.wait_for_line(place_in(3));

    b.signal(SIGCONT);
    cluster.wait_gone(worker);
    a.wait_for_line(place_in(4));
    b.wait_for_line(place_in(4));
    touch(end);
    CHECK(a.wait_exit() == 0);
    CHECK(b.wait_exit() == 0);
    cluster.wait_all_gone();
}
