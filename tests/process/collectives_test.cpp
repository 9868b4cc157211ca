// Collectives that are pending: several real ranks on this machine, without a launcher, so that a
// death is seen by the others alone.

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "base/rng.hpp"
#include "tests/process/runtime_peers.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun;
using namespace ddprun::test;

namespace {

const std::string kPeer = DDPRUN_TESTS_DIR "/collectives_peer";

Peers start(Cluster& cluster, int world_size, const std::vector<std::string>& scenario) {
    return {cluster, world_size, scenario, 1, -1, kPeer};
}

std::vector<std::string> kinds(Cluster& cluster) {
    StartOptions options;
    options.argv = {kPeer, "kinds"};
    Process& peer = cluster.start(options);
    REQUIRE(peer.wait_exit() == 0);
    std::istringstream lines(peer.out());
    std::vector<std::string> found;
    for (std::string kind; std::getline(lines, kind);) {
        found.push_back(kind);
    }
    return found;
}

}  // namespace

TEST_CASE("many collectives are pending at once, and are waited for in any order") {
    const int world_size = GENERATE(1, 2, 3, 4);
    Cluster cluster;
    Peers peers = start(cluster, world_size, {"pend"});
    peers.require_exits(0);
    CHECK(peers.lines("^equal$").size() == static_cast<std::size_t>(world_size));
}

TEST_CASE("two ranks send 64 MiB to each other at once") {
    const std::string how = GENERATE("batch", "single");
    Cluster cluster;
    Peers peers = start(cluster, 2, {"cross", "64", how});
    peers.require_exits(0);
    CHECK(peers.lines("^crossed$").size() == 2);
}

// DDPRUN_COLLECTIVE_KILLS says how many kills there are of each kind.
TEST_CASE("a rank is killed: every one that is pending elsewhere ends with its name") {
    const char* const wanted = std::getenv("DDPRUN_COLLECTIVE_KILLS");
    const int kills = wanted == nullptr ? 1 : std::stoi(wanted);
    Rng rng(random_seed());
    Cluster of_kinds;
    const std::vector<std::string> all = kinds(of_kinds);
    REQUIRE(all.size() >= 17);
    std::vector<double> milliseconds;
    for (int kill = 0; kill < kills; ++kill) {
        for (const std::string& kind : all) {
            constexpr int kWorld = 4;
            constexpr int kVictim = kWorld - 1;
            Cluster cluster;
            Peers peers = start(cluster, kWorld, {"die", kind});
            (void)peers.lines("^pends$");
            std::this_thread::sleep_for(  // tidy: allow sleep
                std::chrono::microseconds(rng.below(20'000)));
            const auto killed = std::chrono::steady_clock::now().time_since_epoch();
            peers.ranks[kVictim]->signal(SIGKILL);
            for (int rank = 0; rank < kVictim; ++rank) {
                Process& survivor = *peers.ranks[static_cast<std::size_t>(rank)];
                const std::string line = survivor.wait_for_line("^error at |^wrong: ");
                INFO(kind << " on rank " << rank);
                CHECK_THAT(line,
                           Catch::Contains("failed on rank " + std::to_string(rank) + " of 4: ") &&
                               Catch::Contains("rank 3 at "));
                const std::int64_t told = std::stoll(line.substr(sizeof "error at " - 1));
                milliseconds.push_back(static_cast<double>(told - killed.count()) / 1e6);
            }
            REQUIRE(peers.ranks[kVictim]->wait_exit() == -SIGKILL);
            for (int rank = 0; rank < kVictim; ++rank) {
                Process& survivor = *peers.ranks[static_cast<std::size_t>(rank)];
                survivor.signal(SIGKILL);
                REQUIRE(survivor.wait_exit() == -SIGKILL);
            }
        }
    }
    std::sort(milliseconds.begin(), milliseconds.end());
    WARN(fmt::format("{} kills, told after {:.0f} ms, {:.0f} at most", kills * all.size(),
                     milliseconds[milliseconds.size() / 2], milliseconds.back()));
}

TEST_CASE("a transfer that nobody waits for holds up nothing that follows") {
    Cluster cluster;
    Peers peers = start(cluster, 2, {"abandon"});
    peers.require_exits(0);
    CHECK(peers.lines("^goes on$").size() == 2);
}

TEST_CASE("a collective that is late for its own bound ends the group") {
    Cluster cluster;
    Peers peers = start(cluster, 2, {"late", "300"});
    CHECK_THAT(peers.ranks[0]->wait_for_line("^error: "),
               Catch::Contains("all_reduce failed on rank 0 of 2") &&
                   Catch::Contains("a peer died, was late"));
    CHECK(peers.ranks[0]->wait_exit() == 0);
    peers.ranks[1]->signal(SIGKILL);
    CHECK(peers.ranks[1]->wait_exit() == -SIGKILL);
}

TEST_CASE("a mistake in one call ends nothing that is pending") {
    Cluster cluster;
    Peers peers = start(cluster, 2, {"refuse"});
    peers.require_exits(0);
    for (Process* rank : peers.ranks) {
        CHECK(rank->count_lines("^refused: ") == 12);
    }
}

TEST_CASE("a mesh has a sub-group along each dimension, and one that does not fit is refused") {
    Cluster cluster;
    Peers peers = start(cluster, 6, {"mesh"});
    peers.require_exits(0);
    for (Process* rank : peers.ranks) {
        const std::string said = rank->text();
        CHECK_THAT(said, Catch::Contains("a mesh of data 2 x shard 3 has no dimension pipe"));
        CHECK_THAT(said, Catch::Contains("a mesh of data 4 x shard 2 does not have the 6 ranks of "
                                         "its group"));
        CHECK_THAT(said, Catch::Contains("a mesh of data 6 x data 1: each dimension needs a name "
                                         "of its own"));
        CHECK_THAT(said, Catch::Contains("rank 0 one of a 6, rank 4 one of b 6"));
    }
}
