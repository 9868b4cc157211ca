// Optimizers whose state is shared out over the ranks, with several real ranks on this machine and
// no launcher.

#include <signal.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/rng.hpp"
#include "tests/process/runtime_peers.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun;
using namespace ddprun::test;

namespace {

Peers start(Cluster& cluster, int world_size, const std::vector<std::string>& scenario) {
    return {cluster, world_size, scenario, 1, -1, DDPRUN_TESTS_DIR "/zero_peer"};
}

/// All ranks end, and have found everything equal.
void require_equal(Peers& peers) {
    peers.require_exits(0);
    CHECK(peers.lines("^equal$").size() == peers.ranks.size());
}

}  // namespace

TEST_CASE("a sharded optimizer makes the parameters of one that is not, bit for bit") {
    Cluster cluster;
    Peers peers = start(cluster, GENERATE(1, 2, 3, 4), {"equal"});
    require_equal(peers);
}

TEST_CASE("sharded gradients make the parameters that averaged ones make") {
    Cluster cluster;
    Peers peers = start(cluster, GENERATE(1, 2, 3, 4), {"sharded_gradients"});
    require_equal(peers);
    for (Process* rank : peers.ranks) {
        (void)rank->wait_for_line("^refused: .*no gradient for .*unused.weight, unused.bias: ");
        (void)rank->wait_for_line("^refused: .*the gradient of .* is averaged by another one");
    }
}

TEST_CASE("parameters that the ranks still gather are waited for by the operator that takes one") {
    Cluster cluster;
    Peers peers = start(cluster, GENERATE(2, 4), {"overlap"});
    require_equal(peers);
}

TEST_CASE("a sharded optimizer resumes in a world of any size, and one that is not sharded, too") {
    const int saved_by = GENERATE(1, 4);
    Cluster cluster;
    const auto train = [&](int world_size, const std::string& what) {
        Peers peers = start(cluster, world_size, {what, cluster.dir() / "checkpoints"});
        require_equal(peers);
    };
    train(saved_by, "save");
    for (const int world_size : {1, 2, 3, 4}) {
        train(world_size, "resume");
    }
    train(3, "swap");
}

TEST_CASE("a training with a sharded optimizer that is killed goes on bit for bit") {
    const std::string engine = GENERATE("zero1", "zero2");
    // $DDPRUN_ZERO_KILLS in place of 6.
    const char* const more = std::getenv("DDPRUN_ZERO_KILLS");
    const int kills = more != nullptr ? std::atoi(more) : 6;
    const int world_size = 3;
    Cluster cluster;
    const auto parameters_of = [&](const std::string& dir) {
        Peers peers = start(cluster, world_size, {"train", engine, dir});
        peers.require_exits(0);
        return peers.lines("^parameters ");
    };
    const std::vector<std::string> undisturbed = parameters_of(cluster.dir() / "undisturbed");
    Rng rng(random_seed());
    int resumes = 0;
    std::string dir;
    for (int kill = 0; kill < kills; ++kill) {
        if (kill % 3 == 0) {  // a training is killed three times
            dir = cluster.dir() / fmt::format("killed-{}", kill);
        }
        Peers peers = start(cluster, world_size, {"train", engine, dir});
        peers.ranks[0]->wait_for_lines("^step ", 1 + rng.below(5));
        const std::size_t victim = rng.below(peers.ranks.size());
        peers.ranks[victim]->signal(SIGKILL);
        for (Process* rank : peers.ranks) {
            CHECK(rank->wait_exit() != 0);
            resumes += rank->count_lines("^resumed ") > 0 ? 1 : 0;
        }
        if (kill % 3 == 2 || kill + 1 == kills) {
            CHECK(parameters_of(dir) == undisturbed);
        }
    }
    CHECK(resumes > 0);
    std::printf("%s: %d kills, %d ranks resumed\n", engine.c_str(), kills, resumes);
}

TEST_CASE("parameters that cannot be shared out are refused by all ranks, by name") {
    Cluster cluster;
    Peers peers = start(cluster, 2, {"refuse"});
    peers.require_exits(0);
    for (Process* rank : peers.ranks) {
        INFO(rank->text());
        (void)rank->wait_for_line("^refused: .*group 0 has a tensor of shape .5. that is no param");
        (void)rank->wait_for_line("^refused: .*parameter tied is there twice");
        (void)rank->wait_for_line("^refused: .*there is no parameter");
        (void)rank->wait_for_line("^refused: .*images.weight, .*5, 3, 3, 3.* contiguous");
        (void)rank->wait_for_line("^refused: .*parameter first.weight, Float with shape .13, 80.");
        (void)rank->wait_for_line("^refused: .*rank 1.*no parameter of the network");
        (void)rank->wait_for_line("^refused: .*different parameters: rank 0 1 parameters with 3 ");
        (void)rank->wait_for_line("^refused: .*a parameter of shape .7, 3. was added after");
    }
}
