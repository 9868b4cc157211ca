#include "agent/warm/standby_slots.hpp"

#include <cstdint>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include "agent/supervise/worker_group.hpp"
#include "tests/support/catch.hpp"

namespace ddprun::agent {
namespace {

const std::vector<std::string> kTrial{"python3", "-c", "pass"};

/// Two slots and what is decided about them, as words.
struct TwoSlots {
    explicit TwoSlots(std::vector<std::string> modules = {"torch", "torch.optim"})
        : slots({}, 2, {.modules = std::move(modules), .trial = kTrial}) {}

    std::vector<std::string> settle() {
        std::vector<std::string> words;
        for (const StandbyEffect& effect : slots.settle(now, node)) {
            if (std::holds_alternative<TryStandby>(effect)) {
                words.emplace_back("try");
            } else if (const auto* prepare = std::get_if<PrepareStandby>(&effect)) {
                words.push_back(fmt::format("{} {} of {}{}",
                                            prepare->is_rehearsal ? "rehearse" : "prepare",
                                            prepare->slot.value(), prepare->modules.size(),
                                            prepare->is_guess ? " guessed" : ""));
                told = prepare->told;
                imports = prepare->modules;
            } else if (const auto* discard = std::get_if<DiscardStandby>(&effect)) {
                words.push_back(fmt::format("discard {}", discard->slot.value()));
            } else {
                words.push_back(std::get<Say>(effect).text);
            }
        }
        return words;
    }
    /// Until what is due is due.
    void pass() {
        REQUIRE(slots.next_deadline());
        now = *slots.next_deadline();
    }
    /// The trial shows the hook; slot 0 is being prepared then.
    void try_it() {
        slots.begin(now);
        pass();
        REQUIRE(settle() == std::vector<std::string>{"try"});
        slots.is_here(kFirst);
        REQUIRE(settle().empty());
        slots.has_ended(kFirst);
        REQUIRE(settle() == std::vector<std::string>{"rehearse 0 of 2"});
        slots.is_here(kFirst);
        pass_rehearsal();
        REQUIRE(settle() == std::vector<std::string>{"prepare 0 of 2"});
        slots.is_here(kFirst);
    }
    /// Ends a rehearsal that succeeds; the caller's next call decides the rest.
    void pass_rehearsal(std::uint64_t memory = 0) {
        slots.is_fit(kFirst, memory);
        slots.is_ready(kFirst, memory);  // A rehearsing process never becomes ready.
        REQUIRE_FALSE(slots.is_waiting(kFirst));
        REQUIRE(settle().empty());
        slots.has_ended(kFirst);
    }

    static inline const LocalRank kFirst{0};
    static inline const LocalRank kSecond{1};
    Instant now{};
    NodeSeen node;
    std::set<std::string> told;  ///< of the last that was prepared, as are the next
    std::vector<std::string> imports;
    StandbySlots slots;
};

constexpr std::uint64_t kMebibyte = std::uint64_t{1} << 20;

using Decisions = std::vector<std::string>;

}  // namespace

TEST_CASE("standbys are prepared one at a time once workers have run for a while") {
    TwoSlots two;
    CHECK(two.settle().empty());
    CHECK(!two.slots.next_deadline());
    two.slots.begin(two.now);
    CHECK(two.settle().empty());
    CHECK(two.slots.next_deadline() == two.now + Limits{}.standby_after);
    two.try_it();
    CHECK(two.settle().empty());
    two.slots.is_ready(TwoSlots::kFirst, 0);
    CHECK(two.settle() == Decisions{"prepare 1 of 2"});
    two.slots.is_ready(TwoSlots::kSecond, 0);
    CHECK(two.settle().empty());
    CHECK(!two.slots.next_deadline());
}

TEST_CASE("workers that are being stopped have no standby prepared beside them") {
    TwoSlots two;
    two.try_it();
    two.slots.pause();
    two.slots.is_ready(TwoSlots::kFirst, 0);
    CHECK(two.settle().empty());
    CHECK(!two.slots.next_deadline());
    two.slots.begin(two.now);
    two.pass();
    CHECK(two.settle() == Decisions{"prepare 1 of 2"});
}

TEST_CASE("a generation takes the standbys that are ready, and none is left beside it") {
    TwoSlots two;
    two.try_it();
    CHECK(two.slots.take().empty());
    two.slots.is_ready(TwoSlots::kFirst, 0);
    CHECK(two.settle() == Decisions{"prepare 1 of 2"});
    CHECK(two.slots.take() == std::vector{TwoSlots::kFirst});
    CHECK(two.slots.take().empty());
    two.slots.begin(two.now);
    two.pass();
    CHECK(two.settle() == Decisions{"prepare 0 of 2"});
}

TEST_CASE("a late standby goes on being prepared when no other is ready") {
    TwoSlots two;
    two.try_it();
    CHECK(two.slots.take().empty());
    two.slots.is_ready(TwoSlots::kFirst, 0);
    CHECK(two.slots.take() == std::vector{TwoSlots::kFirst});
}

TEST_CASE("a Python that reads no variables is named once, and nothing is tried again") {
    TwoSlots two;
    two.slots.begin(two.now);
    two.pass();
    CHECK(two.settle() == Decisions{"try"});
    two.slots.has_ended(TwoSlots::kFirst);
    CHECK(two.settle() == Decisions{"--warm: workers start cold: python3 does not run what ddprun "
                                    "puts before PYTHONPATH, as with -I, -E or -S"});
    CHECK(two.slots.is_off());
    two.slots.begin(two.now);
    CHECK(!two.slots.next_deadline());
}

TEST_CASE("where no standby can be started workers start cold, which is said once") {
    TwoSlots two;
    two.slots.begin(two.now);
    two.pass();
    CHECK(two.settle() == Decisions{"try"});
    two.slots.cannot_be_started("no more processes");
    two.slots.cannot_be_started("no more processes");
    CHECK(two.settle() == Decisions{"--warm: workers start cold: no more processes"});
    two.slots.begin(two.now);
    CHECK(!two.slots.next_deadline());
}

TEST_CASE("standbys stop before a module that shows only there that it is unfit") {
    TwoSlots two;
    two.try_it();
    two.slots.is_unfit(TwoSlots::kFirst, "torch.optim", "it starts 1 thread");
    CHECK(two.settle() == Decisions{"--warm: torch.optim and what follows it is not imported "
                                    "beforehand: it starts 1 thread"});
    two.slots.has_ended(TwoSlots::kFirst);
    CHECK(two.settle() == Decisions{"prepare 0 of 1"});
    two.slots.is_unfit(TwoSlots::kFirst, "torch", "it asks for RANK");
    CHECK(two.settle().size() == 1);
    two.slots.has_ended(TwoSlots::kFirst);
    CHECK(two.settle().empty());
    CHECK(two.slots.is_off());
}

TEST_CASE("a standby that hangs or dies is replaced, but not for ever") {
    TwoSlots two;
    two.try_it();
    two.pass();
    CHECK(two.settle() == Decisions{"discard 0"});
    two.slots.is_ready(TwoSlots::kFirst, 0);  // Too late: it has been killed.
    CHECK(two.settle().empty());
    two.slots.has_ended(TwoSlots::kFirst);
    CHECK(two.settle() == Decisions{"prepare 0 of 2"});
    two.slots.is_ready(TwoSlots::kFirst, 0);
    CHECK(two.settle() == Decisions{"prepare 1 of 2"});
    two.slots.has_ended(TwoSlots::kFirst);
    two.slots.is_ready(TwoSlots::kSecond, 0);
    CHECK(two.settle() == Decisions{"prepare 0 of 2"});
    two.slots.has_ended(TwoSlots::kFirst);
    CHECK(two.settle() ==
          Decisions{"--warm: local rank 0 has no standby any more: it ended while it "
                    "was prepared, 3 times"});
    CHECK(!two.slots.next_deadline());
    CHECK(two.slots.why_not(TwoSlots::kFirst, two.now).empty());
}

TEST_CASE("a worker that starts cold is told how long its standby would have taken, and why") {
    TwoSlots two;
    two.slots = StandbySlots({}, 2, {.learns = true, .trial = kTrial});
    const auto first = [&two] { return two.slots.why_not(TwoSlots::kFirst, two.now); };
    const auto second = [&two] { return two.slots.why_not(TwoSlots::kSecond, two.now); };
    two.slots.begin(two.now);
    CHECK(first() == "what it imports is not known yet");
    two.slots.learn(two.now, TwoSlots::kFirst, {"begins torch"});
    CHECK(first() == "what it imports is not known yet: torch was being imported");
    two.now += Milliseconds(4000);
    two.slots.learn(two.now, TwoSlots::kFirst, {"torch"});
    // As long as the worker's imports took: a rehearsal and one or two standbys, after a second.
    CHECK(first() == "its standby needed 9 s more: the workers had only just started");
    CHECK(second() == "its standby needed 13 s more: the workers had only just started");
    two.slots.learn(two.now, TwoSlots::kFirst, {"begins torch._dynamo"});
    CHECK(first() == "its standby needed 9 s more: torch._dynamo was being imported");
    two.slots.learn(two.now, TwoSlots::kFirst, {"begins -"});
    TwoSlots stopped = two;
    stopped.slots.pause();
    CHECK(stopped.slots.why_not(TwoSlots::kFirst, two.now) == first());
    two.node.is_first_step_awaited = true;
    CHECK(two.settle().empty());
    CHECK(first() == "its standby needed 9 s more: the first step comes first");
    two.node.is_first_step_awaited = false;
    two.pass();
    CHECK(two.settle() == Decisions{"rehearse 0 of 1 guessed"});
    two.now += Milliseconds(3000);
    CHECK(first() == "its standby needed 5 s more: what it imports was being rehearsed");
    CHECK(second() == "its standby needed 9 s more: what it imports was being rehearsed");
    two.pass_rehearsal();
    CHECK(two.settle() == Decisions{"prepare 0 of 1 guessed"});
    two.now += Milliseconds(500);  // The rehearsal took 3 s.
    CHECK(first() == "its standby's imports needed 3 s more");
    CHECK(second() == "its standby needed 6 s more: one is prepared at a time");
    two.slots.pause();
    two.now += Milliseconds(10000);
    CHECK(first() == "its standby's imports needed 1 s more");  // That is the least.
    CHECK(two.slots.take().empty());
}

TEST_CASE("a standby that is missing as memory has no room is not said to need time") {
    TwoSlots two;
    two.try_it();
    two.slots.is_ready(TwoSlots::kFirst, 0);
    two.slots.memory_is_short();
    CHECK(two.settle().size() == 2);
    two.slots.has_ended(TwoSlots::kFirst);
    two.slots.pause();
    CHECK(two.slots.why_not(TwoSlots::kFirst, two.now) == "memory had no room for its standby");
}

TEST_CASE("no standby is prepared while a worker imports, unless that never ends") {
    TwoSlots two;
    two.slots = StandbySlots({}, 2, {.learns = true, .trial = kTrial});
    two.slots.begin(two.now);
    const Instant end = two.now + Limits{}.standby_first_step_max;
    two.slots.learn(two.now, TwoSlots::kFirst, {"json", "begins torch"});
    two.slots.learn(two.now, TwoSlots::kSecond, {"begins torch"});
    CHECK(two.settle().empty());
    CHECK(two.slots.next_deadline() == end);
    two.now += Milliseconds(20000);
    two.slots.learn(two.now, TwoSlots::kFirst, {"torch"});
    CHECK(two.settle().empty());
    CHECK(two.slots.next_deadline() == end);
    two.now += Limits{}.standby_quiet;
    CHECK(two.settle().empty());  // The other worker imports yet.
    const bool does_end = GENERATE(true, false);
    if (does_end) {
        two.slots.learn(two.now, TwoSlots::kSecond, {"begins -"});
        CHECK(two.slots.next_deadline() == two.now);
    }
    two.pass();
    CHECK(two.settle() == Decisions{"rehearse 0 of 2 guessed"});
}

TEST_CASE("an import that a worker's end has cut off holds up nobody") {
    TwoSlots two;
    two.slots = StandbySlots({}, 2, {.learns = true, .trial = kTrial});
    two.slots.begin(two.now);
    two.slots.learn(two.now, TwoSlots::kFirst, {"json", "begins torch"});
    two.slots.pause();
    two.slots.begin(two.now);
    CHECK(two.slots.next_deadline() == two.now + Limits{}.standby_after);
    // That its successor imports the same again is no news, and ends the wait for news.
    two.slots.learn(two.now, TwoSlots::kFirst, {"begins json", "json"});
    CHECK(two.slots.next_deadline() == two.now + Limits{}.standby_quiet);
}

TEST_CASE("standbys wait for what a worker imports, until it has imported nothing for a while") {
    TwoSlots two;
    two.slots = StandbySlots({}, 2, {.learns = true, .trial = kTrial});
    CHECK_FALSE(two.slots.is_off());
    two.slots.begin(two.now);
    two.now += Milliseconds(3000);
    two.slots.learn(two.now, TwoSlots::kFirst, {"torch", "a/b", "", "json", "x 1 2 3"});
    two.slots.learn(two.now, TwoSlots::kFirst, {"torch"});
    CHECK(two.settle().empty());
    CHECK(two.slots.next_deadline() == two.now + Limits{}.standby_quiet);
    two.pass();
    CHECK(two.settle() == Decisions{"rehearse 0 of 2 guessed"});
    two.pass_rehearsal();
    CHECK(two.settle() == Decisions{"prepare 0 of 2 guessed"});
    two.slots.is_ready(TwoSlots::kFirst, 0);
    CHECK(two.settle() == Decisions{"prepare 1 of 2 guessed"});
    two.slots.is_ready(TwoSlots::kSecond, 0);
    CHECK(two.settle().empty());
    CHECK_FALSE(two.slots.next_deadline());
}

TEST_CASE("standbys that are ready before something was imported are replaced, not for ever") {
    TwoSlots two;
    two.slots = StandbySlots({}, 2, {.learns = true, .trial = kTrial});
    two.slots.begin(two.now);
    two.slots.learn(two.now, TwoSlots::kFirst, {"torch"});
    two.pass();
    CHECK(two.settle() == Decisions{"rehearse 0 of 1 guessed"});
    two.pass_rehearsal();
    CHECK(two.settle() == Decisions{"prepare 0 of 1 guessed"});
    two.slots.is_ready(TwoSlots::kFirst, 0);
    CHECK(two.settle() == Decisions{"prepare 1 of 1 guessed"});
    two.slots.is_ready(TwoSlots::kSecond, 0);
    CHECK(two.settle().empty());
    for (int i = 1; i < Limits{}.standby_failures_max; ++i) {
        two.slots.learn(two.now, TwoSlots::kFirst, {fmt::format("more{}", i)});
        CHECK(two.settle().empty());
        two.pass();
        CHECK(two.settle() == Decisions{"discard 0"});
        two.slots.has_ended(TwoSlots::kFirst);
        CHECK(two.settle() == Decisions{fmt::format("rehearse 0 of {} guessed", i + 1)});
        two.pass_rehearsal();
        CHECK(two.settle() == Decisions{fmt::format("prepare 0 of {} guessed", i + 1)});
        two.slots.is_ready(TwoSlots::kFirst, 0);
        CHECK(two.settle() == Decisions{"discard 1"});
        two.slots.has_ended(TwoSlots::kSecond);
        CHECK(two.settle() == Decisions{fmt::format("prepare 1 of {} guessed", i + 1)});
        two.slots.is_ready(TwoSlots::kSecond, 0);
        CHECK(two.settle().empty());
    }
    two.slots.learn(two.now, TwoSlots::kFirst, {"last"});
    CHECK(two.settle().empty());
    CHECK_FALSE(two.slots.next_deadline());  // It was rehearsed often enough.
    two.slots.begin(two.now);
    two.pass();
    CHECK(two.settle() == Decisions{"discard 0"});
}

TEST_CASE("a program that imports all the time has standbys with what was rehearsed") {
    TwoSlots two;
    two.slots = StandbySlots({}, 2, {.learns = true, .trial = kTrial});
    two.slots.begin(two.now);
    for (int i = 1; i <= Limits{}.standby_failures_max; ++i) {
        two.slots.learn(two.now, TwoSlots::kFirst, {fmt::format("torch{}", i)});
        two.pass();
        CHECK(two.settle() == Decisions{fmt::format("rehearse 0 of {} guessed", i)});
        two.slots.learn(two.now, TwoSlots::kFirst, {fmt::format("late{}", i)});
        if (i < Limits{}.standby_failures_max) {
            two.slots.cannot_import(TwoSlots::kFirst, fmt::format("late{}", i));
            two.slots.has_ended(TwoSlots::kFirst);
        }
    }
    two.pass_rehearsal();
    two.pass();
    const int rehearsed = Limits{}.standby_failures_max;
    CHECK(two.settle() == Decisions{fmt::format("prepare 0 of {} guessed", rehearsed)});
}

TEST_CASE("a guess that cannot be imported is left out, one that must wait ends the list") {
    TwoSlots two;
    two.slots = StandbySlots({}, 2, {.learns = true, .trial = kTrial});
    two.slots.begin(two.now);
    two.slots.learn(two.now, TwoSlots::kFirst, {"torch", "broken", "threads", "json"});
    two.pass();
    CHECK(two.settle() == Decisions{"rehearse 0 of 4 guessed"});
    two.slots.cannot_import(TwoSlots::kFirst, "broken");
    two.slots.has_ended(TwoSlots::kFirst);
    CHECK(two.settle() == Decisions{"rehearse 0 of 3 guessed"});
    two.slots.learn(two.now, TwoSlots::kFirst, {"broken"});
    two.slots.is_unfit(TwoSlots::kFirst, "threads", "it starts 1 thread");
    CHECK(two.settle().size() == 1);
    two.slots.has_ended(TwoSlots::kFirst);
    CHECK(two.settle() == Decisions{"prepare 0 of 1 guessed"});
    two.slots.learn(two.now, TwoSlots::kFirst, {"json", "later"});
    two.slots.is_ready(TwoSlots::kFirst, 0);
    CHECK(two.settle() == Decisions{"prepare 1 of 1 guessed"});
    CHECK_FALSE(two.slots.learns());
}

TEST_CASE("what an earlier run has learned is prepared before a worker has told anything") {
    TwoSlots two;
    two.slots = StandbySlots({}, 2, {.learns = true, .known = {"torch", "stale"}, .trial = kTrial});
    two.slots.begin(two.now);
    two.pass();
    REQUIRE(two.settle() == Decisions{"try"});
    two.slots.is_here(TwoSlots::kFirst);
    two.slots.has_ended(TwoSlots::kFirst);
    CHECK(two.settle() == Decisions{"rehearse 0 of 2 guessed"});
    CHECK(two.told.empty());
    two.pass_rehearsal();
    CHECK(two.settle() == Decisions{"prepare 0 of 2 guessed"});
}

TEST_CASE("what a worker imports is awaited, known or not, and only that is kept for later runs") {
    TwoSlots two;
    two.slots = StandbySlots({}, 2, {.learns = true, .known = {"torch", "stale"}, .trial = kTrial});
    two.slots.begin(two.now);
    two.now += Milliseconds(3000);
    two.slots.learn(two.now, TwoSlots::kFirst, {"torch", "json"});
    CHECK(two.slots.next_deadline() == two.now + Limits{}.standby_quiet);
    two.pass();
    const Instant due = two.now;
    two.now -= Milliseconds(1);
    two.slots.learn(two.now, TwoSlots::kFirst, {"torch", "no/name"});
    CHECK(two.slots.next_deadline() == due);  // It was told before.
    two.now = due;
    CHECK(two.settle() == Decisions{"rehearse 0 of 2 guessed"});  // "stale" is of another run.
    CHECK(two.told == std::set<std::string>{"json", "torch"});
}

TEST_CASE("a standby imports what its own worker has, each in the state that this one told") {
    TwoSlots two;
    two.slots = StandbySlots({}, 2, {.learns = true, .trial = kTrial});
    two.slots.begin(two.now);
    two.slots.learn(two.now, TwoSlots::kSecond, {"ahead 1 cpus=1", "json 3", "torch 4 path=*"});
    two.slots.learn(two.now, TwoSlots::kFirst,
                    {"os 1 path=*", "json 2", "logger 5", "torch 4 path=*|unset=41"});
    two.pass();
    CHECK(two.settle() == Decisions{"rehearse 0 of 4 guessed"});
    CHECK(two.imports == Decisions{"os 1 path=*", "json 2", "logger 5", "torch 4 path=*|unset=41"});
    two.slots.cannot_import(TwoSlots::kFirst, "os");
    two.slots.has_ended(TwoSlots::kFirst);
    CHECK(two.settle() == Decisions{"rehearse 0 of 3 guessed"});
    CHECK(two.imports.front() == "json 2 path=*");
    two.pass_rehearsal();
    CHECK(two.settle() == Decisions{"prepare 0 of 3 guessed"});
    two.slots.is_ready(TwoSlots::kFirst);
    CHECK(two.settle() == Decisions{"prepare 1 of 2 guessed"});
    CHECK(two.imports == Decisions{"json 3 cpus=1", "torch 4 path=*"});
    two.slots.is_ready(TwoSlots::kSecond);
    CHECK(two.settle().empty());
    // Its own worker comes to one that the first slot's has imported long ago.
    two.slots.learn(two.now, TwoSlots::kSecond, {"other 6", "logger 5"});
    two.pass();
    CHECK(two.settle() == Decisions{"discard 1"});
    two.slots.has_ended(TwoSlots::kSecond);
    CHECK(two.settle() == Decisions{"prepare 1 of 3 guessed"});
}

TEST_CASE("a standby that was started with another list than is known now ends no list") {
    TwoSlots two;
    two.slots = StandbySlots({}, 2, {.learns = true, .known = {"torch", "stale"}, .trial = kTrial});
    two.slots.begin(two.now);
    two.slots.learn(two.now, TwoSlots::kSecond, {"unknown"});  // The workers have the hook.
    two.pass();
    CHECK(two.settle() == Decisions{"rehearse 0 of 2 guessed"});
    two.slots.learn(two.now, TwoSlots::kFirst, {"json", "torch"});
    two.slots.is_unfit(TwoSlots::kFirst, "torch", "it is another one");
    two.slots.has_ended(TwoSlots::kFirst);
    CHECK(two.slots.learns());
    two.pass();
    CHECK(two.settle() == Decisions{"rehearse 0 of 2 guessed"});
    CHECK(two.imports == Decisions{"json", "torch"});
}

TEST_CASE("names are learned until a message to a standby is full") {
    TwoSlots two;
    two.slots = StandbySlots({}, 2, {.learns = true, .trial = kTrial});
    two.slots.learn(two.now, TwoSlots::kFirst,
                    {std::string(Limits{}.standby_imports_bytes_max - 100, 'x')});
    CHECK(two.slots.learns());
    two.slots.learn(two.now, TwoSlots::kFirst, {std::string(100, 'y')});
    CHECK_FALSE(two.slots.learns());
    CHECK_FALSE(two.slots.is_off());
}

TEST_CASE("standbys are prepared while memory has room for them, where that is asked for") {
    TwoSlots two;
    two.slots = StandbySlots({}, 2, {.modules = {"torch"}, .needs_room = true, .trial = kTrial});
    two.node.room = MemoryRoom{4000 * kMebibyte, 1100 * kMebibyte};
    two.slots.begin(two.now);
    two.pass();
    REQUIRE(two.settle() == Decisions{"try"});
    two.slots.is_here(TwoSlots::kFirst);
    two.slots.has_ended(TwoSlots::kFirst);
    CHECK(two.settle() == Decisions{"rehearse 0 of 1"});
    two.pass_rehearsal();
    CHECK(two.settle() == Decisions{"prepare 0 of 1"});
    two.slots.is_ready(TwoSlots::kFirst, 290 * kMebibyte);
    two.node.room = MemoryRoom{4000 * kMebibyte, 680 * kMebibyte};
    CHECK(two.settle() ==
          Decisions{"--warm: local rank 1 has no standby: one takes about 290 MiB, and 680 of 4000 "
                    "MiB are free, of which 10 % are to stay so; --warm on prepares them even so"});
    CHECK_FALSE(two.slots.next_deadline());
    two.slots.begin(two.now);
    two.pass();
    CHECK(two.settle().empty());  // It has been said.
    two.slots.begin(two.now);
    two.pass();
    two.node.room = MemoryRoom{4000 * kMebibyte, 700 * kMebibyte};
    CHECK(two.settle() == Decisions{"prepare 1 of 1"});
}

TEST_CASE("standbys have no more memory than they may, as the rehearsal or one of them shows") {
    TwoSlots two;
    two.slots =
        StandbySlots({}, 2, {.modules = {"torch"}, .memory_max = 300 * kMebibyte, .trial = kTrial});
    two.slots.begin(two.now);
    two.slots.learn(two.now, TwoSlots::kFirst, {"torch"});  // So the workers have the hook.
    two.pass();
    CHECK(two.settle() == Decisions{"rehearse 0 of 1"});
    two.pass_rehearsal(100 * kMebibyte);
    CHECK(two.settle() == Decisions{"prepare 0 of 1"});
    two.slots.is_ready(TwoSlots::kFirst, 200 * kMebibyte);
    CHECK(two.settle() == Decisions{"--warm: local rank 1 has no standby: one takes 200 MiB, all "
                                    "may have 300 MiB (--warm-memory-max)"});
    CHECK(two.slots.take() == std::vector{TwoSlots::kFirst});
    two.slots.begin(two.now);
    two.pass();
    CHECK(two.settle() == Decisions{"prepare 0 of 1"});
    two.slots.is_ready(TwoSlots::kFirst, 400 * kMebibyte);
    CHECK(two.settle() == Decisions{"discard 0"});
    two.slots.has_ended(TwoSlots::kFirst);
    CHECK(two.settle().empty());
    CHECK_FALSE(two.slots.is_waiting(TwoSlots::kFirst));
}

TEST_CASE("a rehearsal that shows too much memory is followed by no standby") {
    TwoSlots two;
    two.slots =
        StandbySlots({}, 2, {.modules = {"torch"}, .memory_max = 300 * kMebibyte, .trial = kTrial});
    two.slots.begin(two.now);
    two.slots.learn(two.now, TwoSlots::kFirst, {"torch"});
    two.pass();
    CHECK(two.settle() == Decisions{"rehearse 0 of 1"});
    two.pass_rehearsal(400 * kMebibyte);
    CHECK(two.settle() == Decisions{"--warm: local rank 0 has no standby: one takes 400 MiB, all "
                                    "may have 300 MiB (--warm-memory-max)"});
}

TEST_CASE("a rehearsal ends before a module that is unfit, which is named once") {
    TwoSlots two;
    two.slots.begin(two.now);
    two.slots.learn(two.now, TwoSlots::kFirst, {"torch"});
    two.pass();
    CHECK(two.settle() == Decisions{"rehearse 0 of 2"});
    two.slots.is_unfit(TwoSlots::kFirst, "torch.optim", "it connects to somebody");
    CHECK(two.settle() == Decisions{"--warm: torch.optim and what follows it is not imported "
                                    "beforehand: it connects to somebody"});
    two.slots.has_ended(TwoSlots::kFirst);
    CHECK(two.settle() == Decisions{"prepare 0 of 1"});  // The module before torch.optim is fit.
}

TEST_CASE("standbys wait for the first step of workers that tell their steps, not for ever") {
    TwoSlots two;
    two.slots.begin(two.now);
    two.node.is_first_step_awaited = true;
    two.pass();
    CHECK(two.settle().empty());
    CHECK(two.slots.next_deadline() == two.now + Limits{}.standby_quiet);
    two.pass();
    two.node.is_first_step_awaited = false;
    CHECK(two.settle() == Decisions{"try"});
    two.slots.has_ended(TwoSlots::kFirst);

    TwoSlots other;
    other.slots.begin(other.now);
    other.node.is_first_step_awaited = true;
    const Instant end = other.now + Limits{}.standby_first_step_max;
    while (other.now < end) {
        CHECK(other.settle().empty());
        other.pass();
    }
    CHECK(other.now == end);
    CHECK(other.settle() == Decisions{"try"});
}

TEST_CASE("standbys are the first to go when memory is short, and come with the next workers") {
    TwoSlots two;
    two.try_it();
    two.slots.is_ready(TwoSlots::kFirst, 0);
    CHECK(two.settle() == Decisions{"prepare 1 of 2"});
    two.slots.memory_is_short();
    CHECK(two.settle() ==
          Decisions{"discard 0", "discard 1", "--warm: memory is short: 2 standbys are ended"});
    two.slots.memory_is_short();
    CHECK(two.settle().empty());
    two.slots.has_ended(TwoSlots::kFirst);
    two.slots.has_ended(TwoSlots::kSecond);
    CHECK(two.settle().empty());
    CHECK_FALSE(two.slots.next_deadline());
    CHECK(two.slots.take().empty());
    two.slots.begin(two.now);
    two.pass();
    CHECK(two.settle() == Decisions{"prepare 0 of 2"});
}

TEST_CASE("a program that is not Python's has standbys once a worker tells that it can wait") {
    TwoSlots two;
    two.slots = StandbySlots({}, 2, {.program = "train", .learns = true, .needs_room = true});
    two.slots.begin(two.now);
    two.slots.learn(two.now, TwoSlots::kFirst,
                    {"torch"});  // A Python that it has started reports that.
    CHECK(two.slots.take().empty());
    CHECK_FALSE(two.slots.next_deadline());
    two.now += Milliseconds(3000);
    two.slots.can_wait(two.now);
    CHECK(two.settle().empty());
    CHECK(two.slots.next_deadline() == two.now + Limits{}.standby_quiet);
    two.pass();
    CHECK(two.settle() == Decisions{"prepare 0 of 1"});
    two.slots.is_here(TwoSlots::kFirst);
    two.slots.is_ready(TwoSlots::kFirst, 0);
    CHECK(two.settle() == Decisions{"prepare 1 of 1"});
    two.slots.can_wait(two.now);
    two.slots.is_ready(TwoSlots::kSecond, 0);
    CHECK(two.settle().empty());
    CHECK_FALSE(two.slots.next_deadline());
    CHECK(two.slots.take() == std::vector{TwoSlots::kFirst, TwoSlots::kSecond});
}

TEST_CASE("whoever asks for standbys of a program that never waits is told so once") {
    TwoSlots two;
    two.slots = StandbySlots({}, 2, {.program = "train.sh", .learns = true});
    two.slots.begin(two.now);
    CHECK_FALSE(two.slots.next_deadline());  // No worker could have told anything yet.
    CHECK(two.slots.take().empty());
    two.slots.begin(two.now);
    two.pass();
    CHECK(two.settle() == Decisions{"--warm: train.sh has not told that it waits for its place: "
                                    "workers start cold; only Python and programs that use "
                                    "ddprun::run() have standbys"});
    CHECK_FALSE(two.slots.next_deadline());
    CHECK(two.slots.why_not(TwoSlots::kFirst, two.now).empty());
    two.slots.begin(two.now);
    CHECK_FALSE(two.slots.next_deadline());
}

TEST_CASE("what has taken a program's name is not started before a worker of it has told") {
    TwoSlots two;
    two.slots = StandbySlots({}, 2, {.program = "train", .learns = true});
    two.slots.begin(two.now);
    two.slots.can_wait(two.now);
    two.pass();
    CHECK(two.settle() == Decisions{"prepare 0 of 1"});
    two.slots.is_another_program(TwoSlots::kFirst);
    CHECK(two.settle() == Decisions{"--warm: the file of train has changed: it has no standbys "
                                    "until a worker has started from the new one"});
    CHECK_FALSE(two.slots.next_deadline());
    CHECK(two.slots.learns());
    two.slots.can_wait(two.now);
    two.pass();
    CHECK(two.settle() == Decisions{"prepare 0 of 1"});
}

TEST_CASE("a program that does before main() what must wait starts cold, which is said once") {
    TwoSlots two;
    two.slots = StandbySlots({}, 2, {.program = "train", .learns = true});
    two.slots.begin(two.now);
    two.slots.can_wait(two.now);
    two.pass();
    CHECK(two.settle() == Decisions{"prepare 0 of 1"});
    two.slots.is_unfit(TwoSlots::kFirst, "train", "it starts 1 thread");
    CHECK(two.settle() == Decisions{"--warm: train starts cold: before main() it starts 1 thread"});
    two.slots.has_ended(TwoSlots::kFirst);
    CHECK(two.settle().empty());
    CHECK(two.slots.is_off());
    two.slots.can_wait(two.now);
    CHECK_FALSE(two.slots.next_deadline());
}

TEST_CASE("standbys that went with their keeper are prepared again") {
    TwoSlots two;
    two.try_it();
    two.slots.is_ready(TwoSlots::kFirst, 0);
    two.slots.are_lost();
    CHECK(two.slots.take().empty());
    CHECK(two.settle() == Decisions{"prepare 0 of 2"});
}

TEST_CASE("a standby has a worker's environment without what a generation changes") {
    SupervisorOptions options;
    options.identity.slots = 2;
    options.command = {"python3", "-u", "train.py"};
    options.omp_num_threads = 3;
    const std::vector<WorkerSpec> standbys = standbys_of(options);
    REQUIRE(standbys.size() == 2);
    rdzv::Start row;
    row.generation = Generation(4);
    row.base_rank = 6;
    row.world_size = 8;
    row.why = "rank 3 was killed";
    const WorkerGroup group(row, 2);
    StartWorkers start = start_of(group, options, {"10.0.0.1", 29400}, "10.0.0.2");
    for (std::size_t i = 0; i < 2; ++i) {
        CHECK(can_become(standbys[i], start.workers[i]));
        for (const auto& [key, value] : standbys[i].environment) {
            CHECK_FALSE(is_of_generation(key));
        }
    }
    CHECK_FALSE(can_become(standbys[0], start.workers[1]));
    options.omp_num_threads = 4;
    start = start_of(group, options, {"10.0.0.1", 29400}, "10.0.0.2");
    CHECK_FALSE(can_become(standbys[0], start.workers[0]));
}

}  // namespace ddprun::agent
