// Workers run at their place on a node and are told of it; --dry-run prints the place before.

#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun::test;

namespace {

std::vector<std::string> lines_with(const std::string& text, const std::string& start) {
    std::vector<std::string> found;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        if (line.starts_with(start)) {
            found.push_back(line.substr(start.size()));
        }
    }
    std::sort(found.begin(), found.end());
    return found;
}

/// Returns ddprun's console output with `flags`, and nothing else set for OpenMP.
std::string said_by(Cluster& cluster, const std::vector<std::string>& flags) {
    StartOptions options;
    options.argv = {"/usr/bin/env",    "-u",
                    "OMP_NUM_THREADS", Cluster::program("ddprun"),
                    "--log-dir",       cluster.dir() / "logs"};
    options.argv.insert(options.argv.end(), flags.begin(), flags.end());
    Process& node = cluster.start(options);
    REQUIRE(node.wait_exit() == 0);
    cluster.wait_all_gone();
    return node.out() + node.err();
}

std::vector<std::string> with(std::vector<std::string> flags,
                              const std::vector<std::string>& more) {
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
}

}  // namespace

TEST_CASE("--dry-run starts nothing and tells what workers will find") {
    Cluster cluster;
    const std::vector<std::string> flags = {"--nproc-per-node", "2", "--role", "trainer",
                                            "--virtual-local-rank"};
    const std::string plan = said_by(
        cluster, with(flags, {"--dry-run", Cluster::worker(), "--say", "a b", "${local_rank}"}));
    CHECK(list_folder(cluster.dir() / "logs").empty());
    CHECK(lines_with(plan, "  command  " + Cluster::worker()) ==
          std::vector<std::string>{" --say 'a b' 0", " --say 'a b' 1"});
    const std::string truth = said_by(cluster, with(flags, {"env"}));
    int told = 0;
    for (const std::string& line : lines_with(plan, "  ")) {
        const bool is_variable = line.find('=') != std::string::npos && line.front() != ' ' &&
                                 line.find("command") == std::string::npos;
        // The plan prints a value that only a start decides in <>.
        if (is_variable && line.find('<') == std::string::npos && !line.ends_with("=''")) {
            CAPTURE(line);
            CHECK_FALSE(lines_with(truth, line).empty());
            ++told;
        }
    }
    CHECK(told > 20);
}

TEST_CASE("--dry-run tells where the workers' store would be") {
    Cluster cluster;
    const std::vector<std::string> two = {"--nnodes", "2", "--rdzv-endpoint", "head:29400"};
    const auto master = [&](const std::vector<std::string>& flags) {
        const std::string plan = said_by(cluster, with(with(two, flags), {"--dry-run", "true"}));
        return lines_with(plan, "  MASTER_ADDR=").front() + " " +
               lines_with(plan, "  MASTER_PORT=").front();
    };
    CHECK(master({"--store", "agent"}) == "<address of the first node> <any free port>");
    CHECK(master({"--store-relay", "on"}) ==
          "<127.0.0.1; of the first node its address> <any free port>");
    CHECK(master({"--store", "daemon", "--store-relay", "on"}) == "127.0.0.1 <any free port>");
    CHECK(master({"--store", "daemon"}) == "head 29400");
}

TEST_CASE("workers are bound to the CPUs of the plan") {
    Cluster cluster;
    // On a machine with a single CPU no worker can have a CPU of its own.
    const std::string mode =
        std::filesystem::exists("/sys/devices/system/cpu/cpu1") ? "exclusive" : "node";
    const std::vector<std::string> flags = {"--nproc-per-node", "2", "--numa-binding", mode};
    const std::string plan = said_by(cluster, with(flags, {"--dry-run", "true"}));
    const std::string truth =
        said_by(cluster, with(flags, {"grep", "Cpus_allowed_list", "/proc/self/status"}));
    const std::vector<std::string> bound = lines_with(plan, "  CPUs     ");
    CHECK(bound.size() == 2);
    CHECK(lines_with(plan, "  near     NUMA node ").size() == 2);
    CHECK(lines_with(truth, "Cpus_allowed_list:\t") == bound);
    CHECK((mode == "node" || bound.front() != bound.back()));
}

TEST_CASE("without flags workers run wherever ddprun may") {
    Cluster cluster;
    const std::string plan = said_by(cluster, {"--dry-run", "true"});
    CHECK(lines_with(plan, "  CPUs     ") == std::vector<std::string>{"all that ddprun may use"});
}

TEST_CASE("several workers are told their share of the cores, aloud, and a single one is not") {
    Cluster cluster;
    const std::string several = said_by(cluster, {"--nproc-per-node", "64", "env"});
    CHECK(lines_with(several, "OMP_NUM_THREADS=").size() == 64);
    CHECK(lines_with(several, "ddprun: OMP_NUM_THREADS=").size() == 1);
    const std::string single = said_by(cluster, {"env"});
    CHECK(single.find("OMP_NUM_THREADS") == std::string::npos);
}

TEST_CASE("called as ddprun-launch it passes the local rank before the program's arguments") {
    Cluster cluster;
    StartOptions options;
    options.argv = {Cluster::program("ddprun-launch"),
                    "--nproc-per-node",
                    "2",
                    "--log-dir",
                    "/dev/null",
                    "echo",
                    "behind"};
    Process& node = cluster.start(options);
    CHECK(node.wait_exit() == 0);
    CHECK(node.count_lines("^--local-rank=0 behind$") == 1);
    CHECK(node.count_lines("^--local-rank=1 behind$") == 1);
    cluster.wait_all_gone();
}

TEST_CASE("workers that are all told to be local rank 0 still have slots of their own") {
    Cluster cluster;
    Process& node =
        cluster.start_ddprun({"--nproc-per-node", "2", "--virtual-local-rank", Cluster::worker(),
                              "--attach-page", "--leave-when-asked"});
    node.wait_for_lines("^attached local_rank=0$", 2);
    node.signal(SIGTERM);
    static_cast<void>(node.wait_exit());
    // One whose slot another had taken would have got a signal.
    CHECK(node.count_lines("^asked signal=15") == 2);
    cluster.wait_all_gone();
}

TEST_CASE("two nodes of one machine share torchrun's static port") {
    Cluster cluster;
    const FreePort port;
    std::vector<Process*> nodes;
    for (const std::string rank : {"1", "0"}) {
        nodes.push_back(&cluster.start_ddprun(
            {"--nnodes", "2", "--node-rank", rank, "--master-addr", "127.0.0.1", "--master-port",
             std::to_string(port.port()), Cluster::worker(), "--print"}));
    }
    const std::string place = " master=127\\.0\\.0\\.1 port=" + std::to_string(port.port()) + " ";
    for (Process* node : nodes) {
        CHECK(node->wait_exit() == 0);
        CHECK(node->count_lines("^worker .*" + place) == 1);
    }
    cluster.wait_all_gone();
}
