// Which checkpoint is read ahead, and when.

#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "agent/read_ahead/newest_entry.hpp"
#include "agent/warm/read_ahead_moment.hpp"
#include "tests/support/catch.hpp"

namespace ddprun::agent {

namespace {

constexpr Generation kNone{};

/// As ReadAheadMoment::of(); kNone: it is not.
Generation moment(ReadAheadMoment& moments, const Effect& effect, bool is_ending = false) {
    return moments.of(effect, is_ending).value_or(kNone);
}

std::string newest(const std::vector<FolderEntry>& entries) {
    const std::optional<FolderEntry> found = newest_checkpoint(entries);
    return found ? found->name : "none";
}

}  // namespace

TEST_CASE("the checkpoint is read ahead once, when workers are signalled, saved or emptied") {
    const Generation second(2);
    for (const Effect& effect :
         std::vector<Effect>{SignalWorkers{second, SIGTERM, false},
                             SaveStacks{.generation = second}, EmptyGeneration{second}}) {
        ReadAheadMoment moments;
        CHECK(moment(moments, StartWorkers{.generation = second}) == kNone);
        CHECK(moment(moments, Say{"rank 0 has failed"}) == kNone);
        CHECK(moment(moments, effect) == second);
        CHECK(moment(moments, effect) == kNone);
        CHECK(moment(moments, EmptyGeneration{second}) == kNone);
        CHECK(moment(moments, EmptyGeneration{Generation(3)}) == Generation(3));
    }
}

TEST_CASE("workers that are asked to save are waited for: what they write is newer") {
    ReadAheadMoment moments;
    const Generation first(1);
    CHECK(moment(moments, AskWorkersToLeave{.generation = first, .signal = SIGTERM}) == kNone);
    CHECK(moment(moments, SignalWorkers{first, SIGTERM, true}) == kNone);
    CHECK(moment(moments, EmptyGeneration{first}) == first);
}

TEST_CASE("another run that counts from 1 again has its moment too") {
    ReadAheadMoment moments;
    const Generation first(1);
    CHECK(moment(moments, EmptyGeneration{first}) == first);
    CHECK(moment(moments, StartWorkers{.generation = first}) == kNone);
    CHECK(moment(moments, EmptyGeneration{first}) == first);
}

TEST_CASE("nothing is read ahead where no worker will start") {
    const Generation first(1);
    ReadAheadMoment ends;
    CHECK(moment(ends, SignalWorkers{first, SIGTERM, false}, true) == kNone);
    ReadAheadMoment leaves;
    CHECK(moment(leaves, SendToRendezvous{rdzv::Leave{.signal = SIGTERM}}) == kNone);
    CHECK(moment(leaves, EmptyGeneration{first}) == kNone);
    ReadAheadMoment prepares;
    CHECK(moment(prepares, EmptyGeneration{kPrepareGeneration}) == kNone);
}

TEST_CASE("of what Python programs write the newest is read ahead, not what lies beside it") {
    const std::vector<FolderEntry> trainer = {{"checkpoint-1000", true, 30},
                                              {"checkpoint-500", true, 20},
                                              {"runs", true, 90},
                                              {"trainer_state.json", false, 95},
                                              {".git2", true, 99}};
    CHECK(newest(trainer) == "checkpoint-1000");
    CHECK(newest({{"epoch-9.pt", false, 9}, {"epoch-10.pt", false, 10}}) == "epoch-10.pt");
    CHECK(newest({{"epoch-10.pt", false, 8}, {"epoch-9.pt", false, 9}}) == "epoch-9.pt");
    CHECK(newest({{"a.ckpt", false, 5}, {"b.ckpt", false, 5}}) == "b.ckpt");
    CHECK(newest({{"ddprun-step=40.partial", true, 50}, {"ddprun-step=30", true, 40}}) ==
          "ddprun-step=30");
    CHECK(newest({{"model.pt.tmp", false, 9}, {"log.txt", false, 8}, {"", true, 1}}) == "none");
    CHECK(newest({}) == "none");
    for (const char* name : {"m.pt", "m.pth", "m.ckpt", "m.safetensors", "m.bin", "m.tar"}) {
        CHECK(newest({{name, false, 1}}) == name);
        CHECK(newest({{name, true, 1}}) == "none");
    }
}

}  // namespace ddprun::agent
