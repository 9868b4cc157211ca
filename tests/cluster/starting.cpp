// How jobs begin and end, with real daemons on loopback.

#include <signal.h>

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "tests/cluster/nodes.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun::test;

TEST_CASE("a single node needs no flag but the number of workers") {
    Cluster cluster;
    Process& node = cluster.start_ddprun({"--nproc-per-node", "2", Cluster::worker(), "--print"});
    CHECK(node.wait_exit() == 0);
    CHECK(node.count_lines("^worker rank=[01] world=2 .* generation=1 restarts=0 ") == 2);
    CHECK(node.count_lines(" agent_store=True master=127\\.0\\.0\\.1 ") == 2);
    cluster.wait_all_gone();
}

TEST_CASE("the order in which nodes start does not matter, and the first says what it waits for") {
    const bool is_rank_0_first = GENERATE(true, false);
    Cluster cluster;
    const FreePort port;
    Job job;
    job.slots = 2;
    job.endpoint = port.endpoint();
    job.script = {"--print"};
    Process& first = start_node(cluster, job, {"--node-rank", is_rank_0_first ? "0" : "1"});
    first.wait_for_line("waiting for 1 node more: 1 of 2 here");
    Process& second = start_node(cluster, job, {"--node-rank", is_rank_0_first ? "1" : "0"});
    CHECK(first.wait_exit() == 0);
    CHECK(second.wait_exit() == 0);
    const std::string low = "^worker rank=[01] world=4 .* group_world=2 generation=1 ";
    const std::string high = "^worker rank=[23] world=4 .* group_world=2 generation=1 ";
    CHECK(first.count_lines(is_rank_0_first ? low : high) == 2);
    CHECK(second.count_lines(is_rank_0_first ? high : low) == 2);
    cluster.wait_all_gone();
}

TEST_CASE("thirty-two nodes that start at the same instant agree on one daemon") {
    constexpr int kNodes = 32;
    Cluster cluster;
    const FreePort port;
    Job job;
    job.nnodes = std::to_string(kNodes);
    job.endpoint = port.endpoint();
    job.script = {"--print"};
    std::vector<Process*> nodes;
    for (int i = 0; i < kNodes; ++i) {
        nodes.push_back(&start_node(cluster, job));
    }
    std::set<int> ranks;
    std::set<int> ports;
    for (Process* node : nodes) {
        CHECK(node->wait_exit() == 0);
        const std::string line = node->wait_for_line("^worker .* world=32 ");
        ranks.insert(field("x " + line, "rank"));
        ports.insert(field(line, "port"));
    }
    CHECK(ranks.size() == kNodes);
    CHECK(ports.size() == 1);
    cluster.wait_all_gone();
}

TEST_CASE("a daemon that cannot start is given up, with what it says and where") {
    Cluster cluster;
    const FreePort port;
    for (const char* name : {"ddprun", "ddprun-keeper"}) {
        std::filesystem::copy_file(Cluster::program(name), cluster.dir() / name);
    }
    const std::string daemon = cluster.dir() / "ddprun-rendezvous";
    write_file(daemon, "#!/bin/sh\necho start >> " + cluster.dir() / "starts" +
                           "\necho 'libssl.so.3: cannot open' >&2\nexit 127\n");
    std::filesystem::permissions(daemon, std::filesystem::perms::owner_all);
    Job job;
    job.endpoint = port.endpoint();
    std::vector<std::string> argv = node_args(job);
    argv.insert(argv.begin(), cluster.dir() / "ddprun");
    Process& node = cluster.start({.argv = argv});
    node.wait_for_line(
        "cannot start a rendezvous at 127\\.0\\.0\\.1:[0-9]+: .*/ddprun-rendezvous exited with "
        "code 127 3 times before it listened, its last line: libssl\\.so\\.3: cannot open; no "
        "other is started\\. Its log is /.*/rendezvous-[0-9]+\\.log$");
    // It still meets a rendezvous that another node starts there.
    Process& other = start_node(cluster, job);
    CHECK(node.wait_exit() == 0);
    CHECK(other.wait_exit() == 0);
    CHECK(read_file(cluster.dir() / "starts") == "start\nstart\nstart\n");
    CHECK(node.count_lines("cannot start a rendezvous") == 1);
    cluster.wait_all_gone();
}

TEST_CASE("a second run of the same id begins with generation 1 and fresh budgets") {
    Cluster cluster;
    const Cluster::Daemon daemon = cluster.start_daemon();
    Job job;
    job.endpoint = daemon.endpoint;
    job.flags = {"--max-restarts", "1"};
    job.script = {"--print", "--when-rank", "1", "--when-generation", "1", "--exit-code", "3"};
    for (int run = 0; run < 2; ++run) {
        INFO("run " << run);
        Process& a = start_node(cluster, job);
        Process& b = start_node(cluster, job);
        CHECK(a.wait_exit() == 0);
        CHECK(b.wait_exit() == 0);
        // Rank 0 may be stopped before it says anything; rank 1 has spoken before it fails.
        const char* first = "^worker rank=1 .* generation=1 restarts=0 ";
        CHECK(a.count_lines(first) + b.count_lines(first) == 1);
        CHECK(a.count_lines("^worker .* generation=2 restarts=1 ") == 1);
        CHECK(b.count_lines("^worker .* generation=2 restarts=1 ") == 1);
    }
    daemon.process.signal(SIGTERM);
    CHECK(daemon.process.wait_exit() == 0);
    cluster.wait_all_gone();
}

TEST_CASE("two jobs on one daemon do not meet") {
    Cluster cluster;
    const Cluster::Daemon daemon = cluster.start_daemon();
    Job job;
    job.endpoint = daemon.endpoint;
    job.script = {"--print", "--wait-for-file", cluster.dir() / "end"};
    std::vector<Process*> nodes;
    for (const char* id : {"one", "two", "one", "two"}) {
        job.id = id;
        nodes.push_back(&start_node(cluster, job));
    }
    for (std::size_t i = 0; i < nodes.size(); ++i) {
        nodes[i]->wait_for_line(
            "^worker .* world=2 .* run=" + std::string(i % 2 == 0 ? "one" : "two") + " ");
    }
    touch(cluster.dir() / "end");
    for (Process* node : nodes) {
        CHECK(node->wait_exit() == 0);
    }
    daemon.process.signal(SIGTERM);
    CHECK(daemon.process.wait_exit() == 0);
    cluster.wait_all_gone();
}

TEST_CASE("logs are complete and nothing of an earlier generation is deleted") {
    Cluster cluster;
    Process& node = cluster.start_ddprun({"--nproc-per-node",
                                          "2",
                                          "--max-restarts",
                                          "1",
                                          "--redirects",
                                          "3",
                                          "--rdzv-id",
                                          "logs",
                                          Cluster::worker(),
                                          "--say",
                                          "out of generation {generation}",
                                          "--flood",
                                          "1000000",
                                          "--complain",
                                          "last words",
                                          "--before-generation",
                                          "2",
                                          "--when-rank",
                                          "1",
                                          "--exit-code",
                                          "4"});
    CHECK(node.wait_exit() == 0);
    CHECK(node.count_lines("xxx|out of generation") == 0);
    std::string root;
    for (const auto& entry : list_folder(cluster.dir() / "logs")) {
        if (entry.rfind("logs_", 0) == 0) {
            root = cluster.dir() / "logs/" + entry;
        }
    }
    REQUIRE_FALSE(root.empty());
    // Rank 1 of the first generation failed with everything written; rank 0 may have been stopped.
    CHECK(read_file(root + "/attempt_0/1/stdout.log").size() == 1000000 + 20);
    CHECK(read_file(root + "/attempt_0/1/stderr.log") == "last words\n");
    CHECK(read_file(root + "/attempt_1/0/stdout.log").size() == 1000000 + 20);
    CHECK(read_file(root + "/by-rank/1/stdout.log").rfind("out of generation 2\n", 0) == 0);
    cluster.wait_all_gone();
}
