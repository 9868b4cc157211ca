// The worker runtime with several real ranks on this machine. No launcher: the test itself serves
// the store and the page, so that a death is seen by the others alone.

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/process/runtime_peers.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun;
using namespace ddprun::test;

namespace {

/// Local addresses, in the kernel's hexadecimal, on which process `pid` listens.
std::set<std::string> listening_addresses(pid_t pid) {
    std::set<std::string> inodes;
    for (const auto& fd :
         std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
        std::error_code gone;
        const std::string target = std::filesystem::read_symlink(fd.path(), gone).string();
        if (target.starts_with("socket:[")) {
            inodes.insert(target.substr(8, target.size() - 9));
        }
    }
    std::set<std::string> addresses;
    for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
        std::ifstream file(table);
        std::string line;
        while (std::getline(file, line)) {
            std::istringstream fields(line);
            std::vector<std::string> words;
            for (std::string word; fields >> word;) {
                words.push_back(word);
            }
            if (words.size() > 9 && words[3] == "0A" && inodes.contains(words[9])) {
                addresses.insert(words[1].substr(0, words[1].find(':')));
            }
        }
    }
    return addresses;
}

/// One training of the checkpoint scenario from start to end; what each rank has in the end.
std::vector<std::string> train(Cluster& cluster, int world_size, const std::string& dir,
                               int save_at, int end, std::uint64_t generation = 1) {
    Peers peers(cluster, world_size,
                {"checkpoint", dir, std::to_string(save_at), std::to_string(end)}, generation);
    peers.require_exits(0);
    return peers.lines("^values ");
}

std::string newest(const std::string& dir) {
    const std::vector<std::string> names = list_folder(dir);
    REQUIRE_FALSE(names.empty());
    return dir + "/" + names.back();
}

void flip_a_bit(const std::string& path) {
    std::string bytes = read_file(path);
    REQUIRE(bytes.size() > 100);
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
    write_file(path, bytes);
}

}  // namespace

TEST_CASE("ranks form a group over ddprun's store, bound to the address they were told") {
    const int world_size = GENERATE(1, 2, 4);
    Cluster cluster;
    Peers peers(cluster, world_size, {"collectives"});
    for (Process* rank : peers.ranks) {
        // Its standard input is /dev/null: it goes on by itself after "ready".
        rank->wait_for_line("^ready$");
    }
    peers.require_exits(0);
}

TEST_CASE("a group listens on the address it was told and on no other") {
    Cluster cluster;
    Peers peers(cluster, 2, {"until_a_peer_dies"});
    (void)peers.lines("^joined$");
    for (Process* rank : peers.ranks) {
        CHECK(listening_addresses(rank->pid()) == std::set<std::string>{"0200007F"});
    }
}

TEST_CASE("a join that fails is an error, of a group or a part of one") {
    const std::string how = GENERATE("alone", "address", "part");
    Cluster cluster;
    Peers peers(cluster, 2, {"joins_in_vain", how});
    peers.require_exits(0);
    const std::string line = peers.ranks[0]->wait_for_line("^error: ");
    if (how == "part") {
        CHECK_THAT(line, Catch::Contains("making a sub-group of ranks 0, 1 failed on rank 0 of 2"));
    } else {
        CHECK_THAT(line, Catch::Contains("rank 0 of 2 could not join its process group"));
    }
}

// Only the thread sanitizer is sure to see a race here.
TEST_CASE("another thread may tell steps while the group is joined") {
    Cluster cluster;
    Peers peers(cluster, 2, {"progress_beside"});
    peers.require_exits(0);
    for (const auto& page : peers.pages) {
        CHECK(page->progress(LocalRank(0)).value_or(0) >= 2);
    }
}

// DDPRUN_RUNTIME_DEATHS says how many. Gloo may be writing to the dead at that moment: that is
// neither a SIGPIPE nor a wait for the time-out, which is 30 minutes.
TEST_CASE("when a peer dies every other rank gets an error, even from one that goes on") {
    const char* const wanted = std::getenv("DDPRUN_RUNTIME_DEATHS");
    const int deaths = wanted == nullptr ? 4 : std::stoi(wanted);
    for (int death = 0; death < deaths; ++death) {
        Cluster cluster;
        const bool is_training = death % 2 == 1;
        Peers peers(cluster, 4,
                    {is_training ? "until_a_peer_dies_in_training" : "until_a_peer_dies"});
        (void)peers.lines("^joined$");
        const auto dying = static_cast<std::size_t>(death / 2 % 4);
        peers.ranks[dying]->signal(SIGKILL);
        for (std::size_t rank = 0; rank < 4; ++rank) {
            if (rank == dying) {
                continue;
            }
            const std::string line = peers.ranks[rank]->wait_for_line("^error: ");
            if (!is_training) {
                CHECK_THAT(line,
                           Catch::Contains("all_reduce failed on rank " + std::to_string(rank)));
            }
        }
        REQUIRE(peers.ranks[dying]->wait_exit() == -SIGKILL);
        for (Process* rank : peers.ranks) {
            if (rank->is_running()) {
                rank->signal(SIGKILL);
                REQUIRE(rank->wait_exit() == -SIGKILL);
            }
        }
    }
}

TEST_CASE("a program's own mistake is told as such, and its group goes on") {
    Cluster cluster;
    Peers peers(cluster, 2, {"own_mistakes"});
    peers.require_exits(0);
    for (Process* rank : peers.ranks) {
        CHECK_THAT(rank->wait_for_line("^refused: "),
                   Catch::Contains("root") && !Catch::Contains("a peer died"));
        CHECK_THAT(rank->wait_for_line("^judged: "),
                   Catch::Contains("no label for sample 3") && !Catch::Contains("a peer died"));
    }
}

TEST_CASE("two ranks on one GPU are refused by all, both named; unless that is asked for") {
    Cluster cluster;
    Peers apart(cluster, 3, {"gpus", "GPU-{rank}"});
    apart.require_exits(0);
    CHECK(apart.lines("^own$").size() == 3);
    Peers together(cluster, 3, {"gpus", "GPU-5"});
    together.require_exits(3);
    for (const std::string& line : together.lines("^refused: ")) {
        CHECK_THAT(line, Catch::Contains("rank 0 on host host-0 and rank 1 on host host-1 have the "
                                         "same GPU, GPU-5: "));
    }
    Peers asked_for(cluster, 3, {"gpus", "GPU-5", "allow"});
    asked_for.require_exits(0);
    CHECK(asked_for.lines("^shared$").size() == 3);
}

// DDPRUN_RUNTIME_STEPS says how many steps; what each of them left behind was 1 KiB.
TEST_CASE("a long training does not grow") {
    const char* const steps = std::getenv("DDPRUN_RUNTIME_STEPS");
    Cluster cluster;
    Peers peers(cluster, 1, {"long_training", steps == nullptr ? "4000" : steps});
    for (int tenth = 1; tenth <= 10; ++tenth) {
        (void)peers.lines("^" + std::to_string(tenth) + " tenths$");
    }
    peers.require_exits(0);
    (void)peers.lines("^steady$");
}

TEST_CASE("gradients are those of one process with the whole batch, and all ranks stay equal") {
    const int world_size = GENERATE(1, 2, 3);
    const std::string mode = GENERATE("plain", "accumulate");
    Cluster cluster;
    Peers peers(cluster, world_size, {"data_parallel", mode});
    peers.require_exits(0);
    (void)peers.lines("^equal$");
}

TEST_CASE("buffers follow rank 0's") {
    Cluster cluster;
    Peers peers(cluster, 2, {"batch_norm"});
    peers.require_exits(0);
    (void)peers.lines("^equal$");
}

TEST_CASE("an evaluation counts every sample once in a world of any size") {
    const int world_size = GENERATE(1, 2, 4);
    Cluster cluster;
    Peers peers(cluster, world_size, {"evaluation"});
    peers.require_exits(0);
    (void)peers.lines("^equal$");
}

TEST_CASE("ranks with different networks are told so instead of training nonsense") {
    Cluster cluster;
    Peers peers(cluster, 2, {"other_shapes"});
    (void)peers.lines("^refused: ");
}

TEST_CASE("a stop asked of one node is answered by all ranks at the same step") {
    const std::string scenario = GENERATE("until_asked", "until_asked_in_training");
    Cluster cluster;
    Peers peers(cluster, 3, {scenario});
    (void)peers.lines("^trains$");
    peers.pages[1]->ask_to_stop(SIGTERM, std::chrono::steady_clock::now() + kDeadline);
    peers.require_exits(75);
    CHECK_THAT(peers.ranks[0]->wait_for_line("^left"), Catch::Contains("deadline false"));
    CHECK_THAT(peers.ranks[1]->wait_for_line("^left"), Catch::Contains("deadline true"));
    const auto steps = peers.pages[0]->progress(LocalRank(0));
    REQUIRE(steps.has_value());
    CHECK(*steps >= 5);
    CHECK(peers.pages[2]->progress(LocalRank(0)) == steps);
}

TEST_CASE("between passes that only add gradients up nobody leaves and nothing is saved") {
    const std::string network_of = GENERATE("group", "part");
    // With the group's gradients goes the stop request; otherwise the ranks ask each other, and
    // have the answer a step later.
    const std::string last_pass = network_of == "group" ? "4" : "8";
    Cluster cluster;
    Peers peers(cluster, 2, {"accumulates", cluster.dir() / "checkpoints", network_of}, 1, 1);
    peers.require_exits(75);
    for (Process* rank : peers.ranks) {
        CHECK_THAT(rank->wait_for_line("^not saved: "), Catch::Contains("no_sync"));
        CHECK(rank->wait_for_line("^asked after pass ") == "asked after pass " + last_pass);
    }
    CHECK(list_folder(cluster.dir() / "checkpoints").size() == 1);
}

TEST_CASE("a resumed training goes on bit for bit, random numbers and sums included") {
    const int world_size = GENERATE(1, 2, 3);
    Cluster cluster;
    const std::vector<std::string> undisturbed =
        train(cluster, world_size, cluster.dir() / "a", 13, 30);
    const std::vector<std::string> first = train(cluster, world_size, cluster.dir() / "b", 13, 13);
    const std::vector<std::string> resumed =
        train(cluster, world_size, cluster.dir() / "b", 13, 30, 2);
    CHECK(resumed == undisturbed);
    CHECK(first != undisturbed);
}

TEST_CASE("a checkpoint goes on with more and with fewer ranks") {
    Cluster cluster;
    const std::string dir = cluster.dir() / "checkpoints";
    (void)train(cluster, 2, dir, 4, 4);
    const int other_world_size = GENERATE(1, 3);
    Peers peers(cluster, other_world_size, {"checkpoint", dir, "4", "6"}, 2);
    peers.require_exits(0);
    (void)peers.lines("^resumed 4$");
    // Each agent knows where they are, to read the next one ahead.
    for (const auto& page : peers.pages) {
        CHECK(page->checkpoints(LocalRank(0)) == dir);
    }
}

TEST_CASE("a damaged checkpoint is passed over by all ranks, with one line that says why") {
    Cluster cluster;
    const std::string dir = cluster.dir() / "checkpoints";
    (void)train(cluster, 2, dir, 4, 4);
    (void)train(cluster, 2, dir, 8, 8);
    const std::string damage = GENERATE("flip", "truncate", "manifest");
    const std::string file = newest(dir) + "/model-00001-of-00001.safetensors";
    if (damage == "flip") {
        flip_a_bit(file);
    } else if (damage == "truncate") {
        REQUIRE(truncate(file.c_str(), 1000) == 0);
    } else {
        flip_a_bit(newest(dir) + "/manifest.json");
    }
    Peers peers(cluster, 2, {"checkpoint", dir, "4", "6"}, 3);
    peers.require_exits(0);
    (void)peers.lines("^resumed 4$");
    CHECK_THAT(peers.ranks[0]->wait_for_line("passes over"), Catch::Contains("step 8"));
    CHECK(peers.ranks[1]->count_lines("passes over") == 0);
}

TEST_CASE("a rank that sees another folder of checkpoints is refused before the first step") {
    Cluster cluster;
    const std::string shared = cluster.dir() / "checkpoints";
    (void)train(cluster, 2, shared, 4, 4);
    // Each rank sees the folder through its own link; rank 1's leads to a copy.
    const std::string copy = cluster.dir() / "copy";
    std::filesystem::copy(shared, copy, std::filesystem::copy_options::recursive);
    const std::string by_rank = cluster.dir() / "by-rank";
    std::filesystem::create_directory(by_rank);
    std::filesystem::create_symlink(shared, by_rank + "/0");
    std::filesystem::create_symlink(copy, by_rank + "/1");
    Peers peers(cluster, 2, {"checkpoint", by_rank + "/{rank}", "4", "6"}, 3);
    peers.require_exits(4);
    for (const std::string& line : peers.lines("^refused: ")) {
        CHECK_THAT(line, Catch::Contains("rank 1: node ") && Catch::Contains(by_rank + "/1"));
    }
}

TEST_CASE("with no valid checkpoint left nothing is trained over them") {
    Cluster cluster;
    const std::string dir = cluster.dir() / "checkpoints";
    (void)train(cluster, 2, dir, 4, 4);
    flip_a_bit(newest(dir) + "/model-00001-of-00001.safetensors");
    Peers peers(cluster, 2, {"checkpoint", dir, "4", "6"}, 2);
    peers.require_exits(4);
    CHECK_THAT(peers.ranks[0]->wait_for_line("^refused: "), Catch::Contains("none of the 1"));
}

TEST_CASE("a checkpoint of another network is refused by all ranks and changes nothing") {
    Cluster cluster;
    const std::string dir = cluster.dir() / "checkpoints";
    (void)train(cluster, 2, dir, 4, 4);
    Peers peers(cluster, 2, {"misfit", dir}, 2);
    peers.require_exits(0);
    for (const std::string& line : peers.lines("^refused: ")) {
        CHECK_THAT(line, Catch::Contains("model.0.bias") && Catch::Contains("[9]"));
    }
}

TEST_CASE("when one rank refuses a checkpoint no rank takes it") {
    Cluster cluster;
    const std::string dir = cluster.dir() / "checkpoints";
    (void)train(cluster, 2, dir, 4, 4);
    Peers peers(cluster, 2, {"misfit_on_one", dir}, 2);
    peers.require_exits(0);
    CHECK_THAT(peers.ranks[0]->wait_for_line("^refused: "), Catch::Contains("rank 1"));
    CHECK_THAT(peers.ranks[1]->wait_for_line("^refused: "), Catch::Contains("[9]"));
}

TEST_CASE("only the rank that writes holds the state of a save") {
    Cluster cluster;
    Peers peers(cluster, 2, {"take_state"});
    peers.require_exits(0);
}

TEST_CASE("a resume holds the checkpoint once") {
    Cluster cluster;
    Peers peers(cluster, 1, {"resume_memory", cluster.dir() / "checkpoints"});
    peers.require_exits(0);
}

TEST_CASE("a checkpoint holds every type of number") {
    Cluster cluster;
    Peers peers(cluster, 1, {"dtypes", cluster.dir() / "checkpoints"});
    peers.require_exits(0);
}

TEST_CASE("two things under one name are refused, by name") {
    Cluster cluster;
    Peers peers(cluster, 1, {"one_name_twice"});
    peers.require_exits(-SIGABRT);
    CHECK_THAT(peers.ranks[0]->text(), Catch::Contains("extra.table"));
}

TEST_CASE("a folder that cannot hold checkpoints is told before the first step") {
    Cluster cluster;
    write_file(cluster.dir() / "file", "");
    // No user can make a folder below a file, or a file in /proc.
    const std::string below_file = cluster.dir() / "file/below";
    const std::string dir = GENERATE(true, false) ? below_file : "/proc";
    Peers peers(cluster, 2, {"checkpoint", dir, "4", "6"});
    peers.require_exits(4);
    CHECK_THAT(peers.ranks[0]->wait_for_line("^refused: "), Catch::Contains(dir));
    CHECK_THAT(peers.ranks[1]->wait_for_line("^refused: "), Catch::Contains(dir));
}

TEST_CASE("an isolated worker publishes nothing and trains on") {
    Cluster cluster;
    const std::string dir = cluster.dir() / "checkpoints";
    Peers peers(cluster, 2, {"checkpoint", dir, "4", "6"});
    peers.pages[0]->allow_publishing(Instant::min());
    peers.require_exits(0);
    CHECK_THAT(peers.ranks[0]->wait_for_line("^not saved: "), Catch::Contains("isolated"));
    CHECK(list_folder(dir).empty());
}

TEST_CASE("a worker knows its place and why it was started") {
    Cluster cluster;
    Peers peers(cluster, 2, {"place"}, 7);
    peers.require_exits(0);
    CHECK(peers.ranks[1]->wait_for_line("^rank") ==
          "rank 1 of 2, local 0 of 1, generation 7, restarts 2, because rank 1 died");
}

TEST_CASE("without a launcher a worker is a world of one") {
    Cluster cluster;
    StartOptions options;
    options.argv = {Peers::runtime_peer(), "place"};
    Process& alone = cluster.start(options);
    CHECK(alone.wait_exit() == 0);
    CHECK(alone.out() == "rank 0 of 1, local 0 of 1, generation 1, restarts 0, because \n");
}

TEST_CASE("a half-told place is an error that names the variable") {
    Cluster cluster;
    StartOptions options;
    options.argv = {Peers::runtime_peer(), "place"};
    options.env = {{"RANK", "0"}, {"WORLD_SIZE", "2"}};
    Process& alone = cluster.start(options);
    CHECK(alone.wait_exit() == 1);
    CHECK_THAT(alone.err(),
               Catch::StartsWith("runtime_peer: ") && Catch::Contains("LOCAL_RANK is not set"));
}
