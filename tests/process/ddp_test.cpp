// Collectives, sub-groups and what is beside Python's DistributedDataParallel, with several real
// ranks on this machine and no launcher.

#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/process/runtime_peers.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"
#include "tests/support/places.hpp"
#include "tests/support/torch_python.hpp"

using namespace ddprun;
using namespace ddprun::test;

namespace {

Peers peers_of(Cluster& cluster, int world_size, const std::vector<std::string>& scenario) {
    return Peers(cluster, world_size, scenario, 1, -1, DDPRUN_TESTS_DIR "/ddp_peer");
}

void kill_all(Peers& peers) {
    for (Process* rank : peers.ranks) {
        if (rank->is_running()) {
            rank->signal(SIGKILL);
            REQUIRE(rank->wait_exit() == -SIGKILL);
        }
    }
}

std::vector<double> numbers_in(const std::string& path) {
    const std::string bytes = read_file(path);
    std::vector<double> numbers(bytes.size() / sizeof(double));
    std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(double));
    return numbers;
}

/// The largest difference, relative to the number where that is above 1.
double largest_difference(const std::vector<double>& seen, const std::vector<double>& expected) {
    double largest = 0;
    for (std::size_t i = 0; i < seen.size(); ++i) {
        const double difference =
            std::abs(seen[i] - expected[i]) / std::max(1.0, std::abs(expected[i]));
        largest = std::isfinite(difference) ? std::max(largest, difference) : difference;
    }
    return largest;
}

}  // namespace

TEST_CASE("every collective gives what one process computes from all ranks' tensors") {
    const int world_size = GENERATE(2, 3);
    Cluster cluster;
    Peers peers = peers_of(cluster, world_size, {"collectives"});
    peers.require_exits(0);
    (void)peers.lines("^right$");
}

TEST_CASE("sub-groups sum up their own ranks, and a list that differs is refused by all") {
    const int world_size = GENERATE(2, 4);
    Cluster cluster;
    Peers peers = peers_of(cluster, world_size, {"subgroups"});
    peers.require_exits(0);
    (void)peers.lines("^right$");
    CHECK_THAT(peers.ranks[1]->wait_for_line("^differing: "),
               Catch::Contains("rank 0 asks for others"));
    CHECK_THAT(peers.ranks[0]->wait_for_line("^twice: "), Catch::Contains("each once"));
}

TEST_CASE("when a peer dies every collective fails on every rank, those of sub-groups too") {
    const std::string operation =
        GENERATE("gather", "scatter", "reduce_scatter", "all_to_all", "send", "subgroup");
    Cluster cluster;
    Peers peers = peers_of(cluster, 3, {"until_a_peer_dies", operation});
    (void)peers.lines("^joined$");
    // It is no part of the sub-group.
    peers.ranks[2]->signal(SIGKILL);
    for (const std::size_t rank : {0, 1}) {
        // Refused: the connection was found closed before anything was sent.
        const std::string error = peers.ranks[rank]->wait_for_line("^error: ");
        CHECK_THAT(error, Catch::Matches(".* (failed|was refused) on rank " + std::to_string(rank) +
                                         " of [23].*"));
        // A survivor that was quicker ends its connections, too.
        if (operation == "subgroup") {
            CHECK_THAT(error, Catch::Contains("the connection to rank"));
        }
    }
    kill_all(peers);
}

// Gloo does not report an operation that is being written when the peer dies.
TEST_CASE("what is written to a peer that dies fails also for those who use c10d directly") {
    const std::string operation = GENERATE("broadcast", "send");
    Cluster cluster;
    Peers peers = peers_of(cluster, 2, {"written_to_a_stopped_peer", operation});
    peers.ranks[0]->wait_for_line("^writes$");
    peers.ranks[1]->wait_for_line("^stops$");
    peers.ranks[1]->signal(SIGKILL);
    (void)peers.ranks[0]->wait_for_line("^error: ");
    kill_all(peers);
}

// As on GPUs: only an abort ends what waits, and then the engine says that all is done.
TEST_CASE("when a peer dies a stuck engine is aborted, and nothing of it is used") {
    const std::string how = GENERATE("wait", "future", "training", "read");
    Cluster cluster;
    const std::string dir = cluster.dir() / "checkpoints";
    Peers peers = peers_of(cluster, 3, {"stuck_engine", how, dir});
    (void)peers.lines("^waits$");
    peers.ranks[1]->signal(SIGKILL);
    for (const std::size_t rank : {0, 2}) {
        (void)peers.ranks[rank]->wait_for_line("^error: ");
        if (how == "read") {
            CHECK(peers.pages[rank]->progress(LocalRank(0)).value_or(0) == 5);
        }
    }
    CHECK_FALSE(std::filesystem::exists(dir));
    kill_all(peers);
}

TEST_CASE("connections that are not to other ranks are not watched") {
    Cluster cluster;
    Peers peers = peers_of(cluster, 3, {"other_sockets"});
    peers.require_exits(0);
    (void)peers.lines("^right$");
}

TEST_CASE("the watch leaves the program as many files as it needs, also where it has few") {
    Cluster cluster;
    Peers peers = peers_of(cluster, 1, {"few_files"});
    peers.require_exits(0);
    (void)peers.lines("^right$");
}

TEST_CASE("a loss that two threads find is told to both once all engines are aborted") {
    Cluster cluster;
    Peers peers = peers_of(cluster, 1, {"lost_twice"});
    peers.require_exits(0);
    (void)peers.lines("^right$");
}

TEST_CASE("an abort that hangs keeps nobody for ever") {
    Cluster cluster;
    Peers peers = peers_of(cluster, 1, {"hanging_abort"});
    peers.require_exits(0);
    (void)peers.lines("^right$");
}

TEST_CASE("a collective on a GPU that is not done at its time-out is told once") {
    Cluster cluster;
    Peers peers = peers_of(cluster, 1, {"late_work"});
    peers.require_exits(0);
    (void)peers.lines("^right$");
}

TEST_CASE("the ranks that keep the others waiting are named") {
    Cluster cluster;
    Peers peers = peers_of(cluster, 1, {"late_ranks"});
    peers.require_exits(0);
    CHECK(peers.lines("^alone: .*$").front() ==
          "alone: ranks 1, 2 have not begun it, or do not answer");
    CHECK(peers.lines("^two: .*$").front() == "two: rank 1 has not begun it, or does not answer");
    CHECK(peers.lines("^another: .*$").front() ==
          "another: ranks 0, 2 have not begun it, or do not answer");
    CHECK(peers.lines("^all: .*$").front() ==
          "all: all ranks wait for it: they may have called different collectives");
}

TEST_CASE("a rank whose device or memory fails cuts the group, and the others do not wait for it") {
    const std::string how =
        GENERATE("kernel", "GPU memory", "memory", "tensor memory",
                 "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED",
                 "CUDA driver error: an illegal memory access was encountered",
                 "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
                 "cuDNN Frontend error: [cudnn_frontend] Error: CUDNN_STATUS_ALLOC_FAILED");
    Cluster cluster;
    Peers peers = peers_of(cluster, 2, {"device_failure", how});
    CHECK_THAT(peers.ranks[0]->wait_for_line("^error: "),
               Catch::Contains("the other ranks do not wait") && !Catch::Contains("a peer died"));
    (void)peers.ranks[1]->wait_for_line("^error: ");
    kill_all(peers);
}

// Python's ranks run the same trainings meanwhile; both write gradients, parameters and buffers.
TEST_CASE("gradients, parameters and statistics are those that Python's ranks have") {
    if (!is_torch_python_there()) {
        return;
    }
    const int world_size = GENERATE(2, 3);
    Cluster cluster;
    const std::string ours = cluster.dir() / "ours";
    const std::string pythons = cluster.dir() / "pythons";
    std::filesystem::create_directory(ours);
    std::filesystem::create_directory(pythons);
    Peers peers = peers_of(cluster, world_size, {"beside_python", ours});
    // Without a deadline: on a busy machine PyTorch takes a minute to be imported by all ranks.
    REQUIRE(run_torch_python("process/ddp_python.py", {pythons, std::to_string(world_size)}) == 0);
    peers.require_exits(0);
    const std::vector<std::string> names = list_folder(ours);
    REQUIRE(names.size() == static_cast<std::size_t>(world_size) * 18);
    for (const std::string& name : names) {
        CAPTURE(name);
        const std::vector<double> seen = numbers_in(ours + "/" + name);
        const std::vector<double> expected = numbers_in(pythons + "/" + name);
        REQUIRE_FALSE(seen.empty());
        REQUIRE(seen.size() == expected.size());
        // The sum of three 16-bit numbers depends on their order.
        const bool is_half = name.starts_with("float16") || name.starts_with("bfloat16");
        const bool is_float64 = name.find(".float64.") != std::string::npos;
        const double tolerance = is_half && world_size > 2 ? 1e-3 : is_float64 ? 1e-12 : 1e-6;
        CHECK(largest_difference(seen, expected) <= tolerance);
    }
}

TEST_CASE("what cannot be converted or shared out is told") {
    Cluster cluster;
    Peers peers = peers_of(cluster, 2, {"told"});
    peers.require_exits(0);
    CHECK_THAT(peers.ranks[0]->wait_for_line("^not converted: "), Catch::Contains("norm"));
    CHECK_THAT(peers.ranks[0]->wait_for_line("^early: "),
               Catch::Contains("this rank has run out of inputs"));
    CHECK_THAT(peers.ranks[1]->wait_for_line("^early: "),
               Catch::Contains("another rank has run out of inputs"));
}

TEST_CASE("a weight that a network has under two names gets the mean over the ranks") {
    Cluster cluster;
    Peers peers = peers_of(cluster, 2, {"tied"});
    peers.require_exits(0);
    (void)peers.lines("^right$");
}

TEST_CASE("gradients lie in the buckets that travel, however they are cleared") {
    Cluster cluster;
    Peers peers = peers_of(cluster, GENERATE(1, 2, 3), {"in_buckets"});
    peers.require_exits(0);
    (void)peers.lines("^right$");
}

TEST_CASE("a program that nobody launched spawns its workers, and is told which one failed") {
    Cluster cluster;
    const std::string how = GENERATE("right", "throw", "kill", "code");
    StartOptions options;
    options.argv = {DDPRUN_TESTS_DIR "/ddp_peer", "spawn", how};
    Process& program = cluster.start(options);
    const int code = program.wait_exit();
    INFO(program.text());
    for (const char* worker : {"^worker 0 of 3: 3$", "^worker 1 of 3: 3$", "^worker 2 of 3: 3$"}) {
        (void)program.wait_for_line(worker);
    }
    if (how == "right") {
        CHECK(code == 0);
        CHECK(program.wait_for_line("^all ended$") == "all ended");
        return;
    }
    CHECK(code == 9);
    const std::string fate = program.wait_for_line("^failed: ");
    CHECK_THAT(fate, Catch::Contains("rank 1 of 3"));
    CHECK_THAT(fate, Catch::Contains(how == "throw"  ? "no more memory for cats"
                                     : how == "kill" ? "was killed by SIGKILL"
                                                     : "exited with code 7"));
}

TEST_CASE("spawned workers end with the program that has spawned them") {
    Cluster cluster;
    StartOptions options;
    options.argv = {DDPRUN_TESTS_DIR "/ddp_peer", "spawn", "hang"};
    Process& program = cluster.start(options);
    (void)program.wait_for_line("^worker 2 of 3: 3$");
    program.signal(SIGKILL);
    REQUIRE(program.wait_exit() == -SIGKILL);  // and its output ends, which the workers hold open
}
