// Checkpoints that several real ranks of the worker runtime write and read together.

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/os/machine_identity.hpp"
#include "base/rng.hpp"
#include "tests/process/runtime_peers.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun;
using namespace ddprun::test;

namespace {

using Names = std::set<std::string>;

class SavePeers : public Peers {
public:
    SavePeers(Cluster& cluster, int world_size, const std::vector<std::string>& scenario,
              std::uint64_t generation = 1)
        : Peers(cluster, world_size, scenario, generation, -1, DDPRUN_TESTS_DIR "/save_peer") {}
};

Names names_in(const std::string& dir) {
    Names names;
    for (const auto& entry : std::filesystem::directory_iterator(dir)) {
        names.insert(entry.path().filename());
    }
    return names;
}

}  // namespace

TEST_CASE("a state that is large enough is written by several ranks and comes back") {
    Cluster cluster;
    const std::string dir = cluster.dir() / "checkpoints";
    const int world_size = GENERATE(1, 2, 3);
    SavePeers peers(cluster, world_size, {"spread", dir});
    peers.require_exits(0);
    const Names names = names_in(dir + "/step-000000000001");
    const std::string of = "-of-0000" + std::to_string(world_size) + ".safetensors";
    Names expected{"manifest.json", "model.safetensors.index.json"};
    for (int i = 1; i <= world_size; ++i) {
        expected.insert("model-0000" + std::to_string(i) + of);
        expected.insert("training-0000" + std::to_string(i) + of);
    }
    CHECK(names == expected);
}

TEST_CASE("a save beside the training holds what the training had when it began") {
    Cluster cluster;
    const std::string steps_wait_by = GENERATE("engine", "call");
    const int world_size = GENERATE(1, 2);
    SavePeers peers(cluster, world_size,
                    {"background", cluster.dir() / "checkpoints", steps_wait_by});
    peers.require_exits(0);
}

TEST_CASE(
    "ranks that are killed while they save resume what was saved, and nothing that was durable "
    "is lost") {
    // $DDPRUN_SAVE_KILLS in place of 10.
    const char* const more = std::getenv("DDPRUN_SAVE_KILLS");
    const int kills = more != nullptr ? std::atoi(more) : 10;
    Cluster cluster;
    const std::string dir = cluster.dir() / "checkpoints";
    Rng rng(random_seed());
    std::map<std::int64_t, std::string> saved;  // by step, what both ranks had
    std::int64_t durable = 0;
    int resumes = 0;
    for (int kill = 0; kill < kills; ++kill) {
        SavePeers peers(cluster, 2, {"endless", dir}, static_cast<std::uint64_t>(kill) + 1);
        (void)peers.lines("^trains$");
        peers.ranks[0]->wait_for_lines("^(saves|durable) ", 1 + rng.below(7));
        ::poll(nullptr, 0, static_cast<int>(rng.below(60)));  // somewhere in what comes next
        const std::size_t victim = rng.below(2);
        peers.ranks[victim]->signal(SIGKILL);
        CHECK(peers.ranks[victim]->wait_exit() == -SIGKILL);
        if (peers.ranks[1 - victim]->is_running()) {
            peers.ranks[1 - victim]->signal(SIGKILL);  // else it has ended by its error
        }
        std::string said;
        for (Process* rank : peers.ranks) {
            (void)rank->wait_exit();
            said += rank->text();
        }
        std::istringstream lines(said);
        std::map<std::int64_t, std::string> now;
        std::int64_t newest_durable = durable;
        for (std::string line; std::getline(lines, line);) {
            std::istringstream words(line);
            std::string what;
            std::string hash;
            std::int64_t step = 0;
            words >> what >> step >> hash;
            if (what == "resumed") {
                ++resumes;
                INFO("kill " << kill << ": " << line);
                REQUIRE(step >= durable);
                REQUIRE(saved.at(step) == hash);
            } else if (what == "saves") {
                now[step] = hash;
            } else if (what == "durable") {
                newest_durable = std::max(newest_durable, step);
            }
        }
        for (const auto& [step, hash] : now) {
            saved[step] = hash;
        }
        durable = newest_durable;
    }
    CHECK(resumes > 0);
    CHECK(durable > 0);
    std::printf("save: %d kills, %d ranks resumed, step %lld is durable\n", kills, resumes,
                static_cast<long long>(durable));
}

TEST_CASE("parts that four ranks saved are resumed by any number of ranks") {
    Cluster cluster;
    const std::string dir = cluster.dir() / "checkpoints";
    SavePeers(cluster, 4, {"shards", dir, "save"}).require_exits(0);
    for (const int world_size : {1, 2, 3, 4, 8}) {
        SavePeers peers(cluster, world_size, {"shards", dir, "load"}, 2);
        peers.require_exits(0);
        (void)peers.lines("^same$");
    }
}

TEST_CASE("ranks with different states save rank 0's, and a resume waits for the save under way") {
    Cluster cluster;
    const std::string dir = cluster.dir() / "checkpoints";
    SavePeers(cluster, 2, {"other_states", dir}).require_exits(0);
    CHECK(names_in(dir + "/step-000000000002") ==
          Names{"manifest.json", "model-00001-of-00001.safetensors", "model.safetensors.index.json",
                "training-00001-of-00001.safetensors"});
}

TEST_CASE("when a part cannot be saved on one rank no rank saves, and none waits") {
    Cluster cluster;
    SavePeers peers(cluster, 2, {"part_fails", cluster.dir() / "checkpoints"});
    peers.require_exits(0);
    for (const std::string& line : peers.lines("^refused: ")) {
        CHECK_THAT(line,
                   Catch::Contains("step 1 is not saved: rank 1: schedule could not be saved: "
                                   "the schedule is broken"));
    }
}

TEST_CASE("parts that overlap or leave a hole are refused before a checkpoint is published") {
    Cluster cluster;
    const std::string dir = cluster.dir() / "checkpoints";
    const std::map<std::string, std::string> reasons = {
        {"overlap",
         "tensor \"extra.table\": the element at [1,0] of a tensor of shape [4,3] is in several of "
         "its parts: rank 0 has [2,3] at [0,0], rank 1 has [2,3] at [1,0]"},
        {"hole",
         "tensor \"extra.table\": the element at [2,0] of a tensor of shape [5,3] is in none of "
         "its "
         "parts: rank 0 has [2,3] at [0,0], rank 1 has [2,3] at [3,0]"},
        {"shapes", "tensor \"extra.table\" is F32 [4,3] on rank 0 and F32 [5,3] on rank 1"},
        {"whole", "tensor \"extra.table\" is F32 [2,3] on rank 0 and F32 [4,3] on rank 1"},
        {"meshes",
         "tensor \"extra.table\" is F32 [4,3] sharded along `data` on rank 0 and F32 [4,3] sharded "
         "along `shard` on rank 1"},
    };
    for (const auto& [flaw, reason] : reasons) {
        SavePeers peers(cluster, 2, {"bad_parts", dir, flaw});
        peers.require_exits(0);
        for (const std::string which : {"^refused: ", "^refused beside: "}) {
            for (const std::string& line : peers.lines(which)) {
                CHECK_THAT(line, Catch::Contains("was not written to " + dir + ": " + reason));
            }
        }
        CHECK(names_in(dir).empty());
    }
}

TEST_CASE("when one rank cannot write nobody publishes, and the training goes on") {
    Cluster cluster;
    const std::string dir = cluster.dir() / "checkpoints";
    SavePeers peers(cluster, 2, {"one_cannot_write", dir});
    peers.require_exits(0);
    for (const std::string which : {"^not saved: ", "^not saved beside: "}) {
        for (const std::string& line : peers.lines(which)) {
            CHECK_THAT(line, Catch::Contains("was not written to " + dir + ": rank 1: ") &&
                                 Catch::Contains("cannot be written beyond 1048576 bytes") &&
                                 Catch::Contains("File too large"));
        }
    }
    // Beside the training there is one line, of rank 0.
    CHECK_THAT(peers.ranks[0]->wait_for_line("the training goes on"),
               Catch::Contains("checkpoint of step 2 was not written"));
    CHECK(peers.ranks[1]->count_lines("the training goes on") == 0);
    CHECK(names_in(dir) == Names{"step-000000000003"});
}

TEST_CASE("a save while another one is under way is refused on all ranks or on none") {
    Cluster cluster;
    SavePeers(cluster, 2, {"refuses", cluster.dir() / "checkpoints"}).require_exits(0);
}

TEST_CASE("copies that do not fit into the memory are refused on all ranks, with the figures") {
    Cluster cluster;
    SavePeers peers(cluster, 2, {"no_memory", cluster.dir() / "checkpoints"});
    peers.require_exits(0);
    CHECK_THAT(peers.ranks[0]->wait_for_line("^line: .*made ready"),
               Catch::Contains("no memory is made ready for save_async(): rank 0: copying the "
                               "state needs "));
    CHECK(peers.ranks[1]->count_lines("^line: ") == 0);
    for (const std::string& line : peers.lines("^refused: ")) {
        CHECK_THAT(line, Catch::Contains("step 1 is not saved: rank 0: ") &&
                             Catch::Contains(" bytes of memory, and "));
    }
    for (const std::string& line : peers.lines("^not copied: ")) {
        CHECK_THAT(line, Catch::Contains("checkpoint of step 1 was not written") &&
                             Catch::Contains("rank 0: ") &&
                             Catch::Contains("can't allocate memory"));
    }
}

TEST_CASE("a program with other parts resumes what it has, if it may, and says the rest") {
    Cluster cluster;
    SavePeers peers(cluster, 1, {"partial", cluster.dir() / "checkpoints"});
    peers.require_exits(0);
    CHECK_THAT(peers.ranks[0]->wait_for_line("^refused: "),
               Catch::Contains("extra.fresh (Float [3]) is missing"));
    (void)peers.ranks[0]->wait_for_line("line: .*optimizer optimizer .* stays as it is");
    (void)peers.ranks[0]->wait_for_line("line: .*extra.fresh .* stays as it is");
    (void)peers.ranks[0]->wait_for_line("line: .*extra.gone .* left out");
}

TEST_CASE("an optimizer keeps its state of parameters that the checkpoint lacks") {
    Cluster cluster;
    SavePeers peers(cluster, 1, {"other_parameters", cluster.dir() / "checkpoints"});
    peers.require_exits(0);
    (void)peers.lines("^kept$");
}

TEST_CASE("a resume takes memory for the rank's own part alone") {
    Cluster cluster;
    const std::string dir = cluster.dir() / "checkpoints";
    SavePeers(cluster, 4, {"memory", dir, "save"}).require_exits(0);
    for (const int world_size : {1, 2}) {
        SavePeers(cluster, world_size, {"memory", dir, "load"}, 2).require_exits(0);
    }
}

TEST_CASE("a checkpoint of version 1, which an older build wrote, is resumed") {
    Cluster cluster;
    const std::string dir = cluster.dir() / "checkpoints";
    std::filesystem::copy(DDPRUN_SOURCE_DIR "/tests/process/checkpoint_version_1", dir,
                          std::filesystem::copy_options::recursive);
    Peers peers(cluster, 2, {"checkpoint", dir, "4", "4"}, 2);
    peers.require_exits(0);
    (void)peers.lines("^resumed 4$");
    // That build prints the same after a resume from there.
    CHECK(peers.ranks[0]->wait_for_line("^values ") == "values 368616f48e83f250 of 0, total 1985");
    CHECK(peers.ranks[1]->wait_for_line("^values ") == "values 22e8f10ef9fc0e63 of 1, total 1985");
}

TEST_CASE("random states of another size are refused before anything is changed") {
    Cluster cluster;
    SavePeers peers(cluster, 1, {"wrong_random", cluster.dir() / "checkpoints"});
    peers.require_exits(0);
    CHECK_THAT(
        peers.ranks[0]->wait_for_line("^refused: "),
        Catch::Contains("random.cpu is Byte [1, 5], states of this program have 5056 bytes"));
}

TEST_CASE("a node that does not see the folder is named when the training starts") {
    Cluster cluster;
    const std::string dir = cluster.dir() / "checkpoints-";
    SavePeers peers(cluster, 2, {"other_folder", dir + "{rank}"});
    peers.require_exits(0);
    for (const std::string& line : peers.lines("^refused: ")) {
        CHECK_THAT(line, Catch::Contains("rank 1: node " + host_name() + ": folder ") &&
                             Catch::Contains(dir + "1"));
    }
    CHECK(names_in(dir + "0").empty());
    CHECK_FALSE(std::filesystem::exists(dir + "1"));
}

TEST_CASE("ranks wait for a slow writer longer than for a collective") {
    Cluster cluster;
    const std::string dir = cluster.dir() / "checkpoints";
    SavePeers(cluster, 2, {"slow_writer", dir}).require_exits(0);
    CHECK(names_in(dir) == Names{"step-000000000001"});
}

TEST_CASE("ranks wait for a slow reader longer than for a collective") {
    Cluster cluster;
    SavePeers(cluster, 2, {"slow_reader", cluster.dir() / "checkpoints"}).require_exits(0);
}

TEST_CASE("the memory of the first save beside the training is made ready by a resume") {
    Cluster cluster;
    const int world_size = GENERATE(1, 2);
    SavePeers(cluster, world_size, {"prepared", cluster.dir() / "checkpoints"}).require_exits(0);
}

TEST_CASE("short texts go among ranks in one exchange") {
    Cluster cluster;
    const int world_size = GENERATE(1, 3);
    SavePeers(cluster, world_size, {"texts", cluster.dir() / "checkpoints"}).require_exits(0);
}

TEST_CASE("a section of another version is upgraded by the program, or refused by name") {
    Cluster cluster;
    SavePeers peers(cluster, 1, {"versions", cluster.dir() / "checkpoints"});
    peers.require_exits(0);
    (void)peers.ranks[0]->wait_for_line(
        "^refused: .*section schedule is of version 1, this "
        "program's is 0; add it with an upgrade from that version");
    (void)peers.ranks[0]->wait_for_line(
        "^refused: .*section schedule is of version 1, this "
        "program's is 2");
    (void)peers.lines("^upgraded$");
}

TEST_CASE("a save beside the training asks the other ranks once before it returns") {
    Cluster cluster;
    SavePeers(cluster, 2, {"one_vote", cluster.dir() / "checkpoints"}).require_exits(0);
}
