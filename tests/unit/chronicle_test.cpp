// Chronicle reports a Supervisor's inputs and decisions as events, and where the time went.

#include "agent/watch/chronicle.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "rendezvous/events/event_log.hpp"
#include "tests/support/catch.hpp"
#include "tests/unit/supervisor_fixture.hpp"

using namespace ddprun;
using namespace ddprun::agent;
using std::chrono::seconds;

namespace {

/// A Rig whose Supervisor is watched by a Chronicle.
struct Told : Rig {
    Told() : chronicle(two_slot_options(), "train.py", 77) { chronicle.begin(now, events); }

    void see(const Input& input) {
        give(input);
        chronicle.observe(now, input, effects, events);
    }
    void see_message(rdzv::RendezvousMessage message) { see(FromRendezvous{std::move(message)}); }
    void see_exit(int local_rank, int code, int generation = 1) {
        rdzv::Evidence evidence;
        evidence.exit_code = code;
        see(WorkerExited{Generation(static_cast<std::uint64_t>(generation)), LocalRank(local_rank),
                         evidence});
    }
    void see_started(int generation) {
        const Generation number(static_cast<std::uint64_t>(generation));
        chronicle.worker_started(now, number, LocalRank(0), 100, events);
        chronicle.worker_started(now, number, LocalRank(1), 101, events);
    }
    void become_trained() {
        see(LinkUp{"10.0.0.1"});
        see(StoreOpened{{"10.0.0.1", 4001}});
        see_message(rdzv::Accepted{.run_token = "t1"});
        now += seconds(2);
        see_message(row(1, 0));
        see_started(1);
        now += seconds(3);
        const WorkerMoments moments{.main = now - seconds(2),
                                    .group_ready = now,
                                    .resumed = {},
                                    .first_step = now,
                                    .step = 1};
        chronicle.look_at(Generation(1), {moments, moments}, events);
    }
    /// "link_up joined …", of those from number `from` on.
    [[nodiscard]] std::string names(std::size_t from = 0) const {
        std::string text;
        for (std::size_t i = from; i < events.size(); ++i) {
            text += (text.empty() ? "" : " ") + std::string(rdzv::name_of(events[i].kind));
        }
        return text;
    }

    Chronicle chronicle;
    Chronicle::Events events;
};

rdzv::EventLog log_of(const Chronicle::Events& events, const Limits& limits = {}) {
    rdzv::EventLog log(limits);
    for (const rdzv::Event& event : events) {
        log.add(event, event.at, Milliseconds(1'000'000));
    }
    return log;
}

}  // namespace

TEST_CASE("the way to the first step is told in order") {
    Told told;
    told.become_trained();
    CHECK(told.names() == "begun link_up joined formed spawned main group_ready first_step");
}

TEST_CASE("a failure, its restart and the proof of emptiness are told in order, each once") {
    Told told;
    told.become_trained();
    const std::size_t from = told.events.size();
    told.see_exit(1, 3);
    told.see_message(Rig::stop());
    told.see_message(Rig::stop());  // said again after a reconnect
    told.see_exit(0, 143);
    told.see(Emptied{Generation(1)});
    told.see(StoreOpened{{"10.0.0.1", 4001}});
    told.see_message(Rig::row(2, 0));
    CHECK(told.names(from) == "failure stop stopping stopped empty ready formed");
    const rdzv::Event& failure = told.events[from];
    CHECK(failure.rank == Rank(1));
    CHECK(failure.generation == Generation(1));
}

TEST_CASE("a moment is told when the last worker has come to it, once, with that worker's rank") {
    Told told;
    told.become_waiting();
    told.see_message(Rig::row(1, 1));
    const std::size_t from = told.events.size();
    WorkerMoments first{
        .main = told.now, .group_ready = {}, .resumed = {}, .first_step = {}, .step = {}};
    told.chronicle.look_at(Generation(1), {first, {}}, told.events);
    CHECK(told.names(from).empty());
    WorkerMoments second = first;
    second.main = told.now + seconds(1);
    told.chronicle.look_at(Generation(1), {first, second}, told.events);
    told.chronicle.look_at(Generation(1), {first, second}, told.events);
    REQUIRE(told.names(from) == "main");
    CHECK(told.events.back().rank == Rank(3));
    CHECK(told.events.back().at == told.now + seconds(1));
}

TEST_CASE("an event is one line of JSON with its number and both clocks") {
    rdzv::EventLog log(Limits{});
    rdzv::Event event{.kind = rdzv::EventKind::Failure,
                      .at = Instant(seconds(5)),
                      .generation = Generation(2),
                      .rank = Rank(7),
                      .step = 41,
                      .is_estimated = true,
                      .fields = {{"exit_code", std::int64_t{3}}, {"text", std::string("a\n\xff")}}};
    const std::string line = log.add(event, Instant(seconds(6)), Milliseconds(3000));
    CHECK(line ==
          R"({"v":1,"seq":1,"time":"1970-01-01T00:00:02.000Z","mono_ns":5000000000,)"
          R"("event":"failure","generation":2,"rank":7,"step":41,"estimated":true,"exit_code":3,)"
          "\"text\":\"a\\n\xef\xbf\xbd\"}");
}

TEST_CASE("of a long text the end is told, and of many events the newest are kept") {
    Limits limits;
    limits.events_kept_max = 2;
    limits.event_text_bytes_max = 8;
    rdzv::EventLog log(limits);
    for (int i = 0; i < 3; ++i) {
        log.add(
            {.kind = rdzv::EventKind::Notice, .fields = {{"text", std::string("0123456789ab")}}},
            Instant(), Milliseconds(0));
    }
    CHECK(log.first() == 2);
    CHECK(log.next() == 4);
    CHECK(nlohmann::json::parse(log.line(3))["text"] == "…789ab");
}

TEST_CASE("the time of a run is training, restarting, waiting and starting, and nothing else") {
    Told told;
    told.become_trained();  // 2 s of waiting, 3 s to the first step
    told.now += seconds(10);
    told.see_exit(1, 3);
    told.see_message(Rig::stop());
    told.now += seconds(1);
    told.see_exit(0, 143);
    told.now += seconds(1);
    told.see(Emptied{Generation(1)});
    told.see(StoreOpened{{"10.0.0.1", 4001}});
    told.now += seconds(4);
    told.see_message(Rig::row(2, 0));
    told.now += seconds(1);
    told.see_started(2);
    const rdzv::EventLog log = log_of(told.events);
    told.now += seconds(5);
    const rdzv::TimeShares shares = log.time_use().shares(told.now);
    CHECK(shares.starting == seconds(3));
    CHECK(shares.waiting == seconds(6));
    CHECK(shares.restarting == seconds(3));
    CHECK(shares.training == seconds(15));
    CHECK(shares.is_estimated);  // no step of the second generation was told
    const std::vector<rdzv::Restart> restarts = log.time_use().restarts(told.now);
    REQUIRE(restarts.size() == 1);
    CHECK(rdzv::restart_text(restarts[0]) ==
          "generation 1 to 2, 7.0 s: stop 1.0 s, prove empty 1.0 s, get ready 0 ms, "
          "wait for nodes 4.0 s, spawn 1.0 s; because");
}

TEST_CASE("of many generations the sums stay when the oldest are forgotten") {
    Limits few;
    few.restarts_kept_max = 1;
    rdzv::TimeUse all{Limits{}};
    rdzv::TimeUse newest(few);
    Instant now(seconds(100));
    for (std::uint64_t number = 1; number <= 5; ++number) {
        for (const rdzv::EventKind kind :
             {rdzv::EventKind::Ready, rdzv::EventKind::Formed, rdzv::EventKind::Spawned,
              rdzv::EventKind::FirstStep, rdzv::EventKind::Failure, rdzv::EventKind::Stopped,
              rdzv::EventKind::Empty}) {
            const rdzv::Event event{.kind = kind, .at = now, .generation = Generation(number)};
            all.take(event);
            newest.take(event);
            now += seconds(1);
        }
    }
    CHECK(newest.restarts(now).size() <= 2);
    const rdzv::TimeShares whole = all.shares(now);
    const rdzv::TimeShares kept = newest.shares(now);
    CHECK(kept.whole() == whole.whole());
    CHECK(kept.training == whole.training);
    CHECK(kept.restarting == whole.restarting);
    CHECK(kept.waiting == whole.waiting);
    CHECK(kept.generations == 5);
    CHECK(whole.whole() == now - Instant(seconds(100)));
}

TEST_CASE("moments of workers that tell none are estimates, and marked as such") {
    Told told;
    told.see(LinkUp{"10.0.0.1"});
    told.see(StoreOpened{{"10.0.0.1", 4001}});
    told.see_message(rdzv::Accepted{.run_token = "t1"});
    CHECK_FALSE(told.chronicle.needs_estimates());
    for (const int number : {1, 2}) {
        told.see_message(Rig::row(number, 0));
        told.see_started(number);
        const Generation generation(static_cast<std::uint64_t>(number));
        told.chronicle.look_at(generation, {{}, {}}, told.events);
        const std::size_t from = told.events.size();
        const Instant start = told.now;
        told.now += seconds(9);
        Estimates estimates{
            .main = start + seconds(1), .group_ready = start - seconds(1), .first_step = {}};
        told.chronicle.estimate(generation, estimates, told.events);
        CHECK(told.names(from) == "main");  // that group was another generation's
        estimates.group_ready = start + seconds(2);
        told.chronicle.estimate(generation, estimates, told.events);
        estimates.first_step = start + seconds(4);
        told.chronicle.estimate(generation, estimates, told.events);
        told.chronicle.estimate(generation, estimates, told.events);
        told.chronicle.estimate(Generation(7), estimates, told.events);
        CHECK(told.names(from) == "main group_ready first_step");
        for (std::size_t i = from; i < told.events.size(); ++i) {
            CHECK(told.events[i].is_estimated);
            CHECK_FALSE(told.events[i].rank);
        }
        CHECK_FALSE(told.chronicle.needs_estimates());
        if (number == 1) {
            told.see_exit(1, 3);
            told.see_message(Rig::stop());
            told.see_exit(0, 143);
            told.see(Emptied{Generation(1)});
            told.see(StoreOpened{{"10.0.0.1", 4001}});
        }
    }
    const rdzv::EventLog log = log_of(told.events);
    CHECK(log.time_use().shares(told.now).is_estimated);
    const std::vector<rdzv::Restart> restarts = log.time_use().restarts(told.now);
    REQUIRE(restarts.size() == 1);
    CHECK(rdzv::restart_text(restarts[0])
              .find("spawn 0 ms, start programs ~1.0 s, connect ~1.0 s, first step ~2.0 s") !=
          std::string::npos);
    const auto json = rdzv::time_use_json(log.time_use(), told.now, Milliseconds(0));
    const auto& phases = json["restarts"][0]["phases"];
    CHECK(phases.back() ==
          nlohmann::ordered_json{{"name", "first step"}, {"ms", 2000}, {"estimated", true}});
    CHECK_FALSE(phases.front().contains("estimated"));
}

TEST_CASE("what a worker tells of its moments is not mixed with estimates") {
    Told told;
    told.become_trained();
    const std::size_t from = told.events.size();
    CHECK_FALSE(told.chronicle.needs_estimates());
    told.chronicle.estimate(Generation(1), {.main = told.now, .group_ready = {}, .first_step = {}},
                            told.events);
    CHECK(told.events.size() == from);
}

TEST_CASE("steps that were lost with a restart are done anew: about as long as they took") {
    rdzv::TimeUse use{Limits{}};
    const Instant begin(seconds(100));
    const auto take = [&](rdzv::EventKind kind, int at_s, int generation,
                          std::optional<std::uint64_t> step) {
        rdzv::Event event;
        event.kind = kind;
        event.at = begin + seconds(at_s);
        event.generation = Generation(static_cast<std::uint64_t>(generation));
        event.step = step;
        use.take(event);
    };
    take(rdzv::EventKind::Formed, 0, 1, std::nullopt);
    take(rdzv::EventKind::FirstStep, 1, 1, 1);
    take(rdzv::EventKind::Failure, 21, 1, 11);  // ten steps in 20 s
    take(rdzv::EventKind::Formed, 22, 2, std::nullopt);
    take(rdzv::EventKind::FirstStep, 23, 2, 9);  // the checkpoint had 8: 9 to 11 come again
    CHECK(use.shares(begin + seconds(24)).redone == seconds(1));  // it has trained no longer
    CHECK(use.shares(begin + seconds(99)).redone == seconds(4));
    CHECK(use.shares(begin + seconds(99)).training == seconds(20 + 76));
    // Ten steps in 10 s: for as long no step was done, for checkpoints.
    use.note_told(Generation(1), 10, seconds(10));
    use.note_told(Generation(1), 11, seconds(7));  // another node
    use.note_told(Generation(2), std::nullopt, seconds(6));
    use.note_told(Generation(9), 70, seconds(9));  // there is none
    const rdzv::TimeShares shares = use.shares(begin + seconds(99));
    CHECK(shares.checkpointing == seconds(16));
    CHECK(shares.training == seconds(10 + 70));
    CHECK(shares.redone == seconds(2));
    CHECK(shares.whole() == seconds(99));
    CHECK(rdzv::shares_text(shares).find(", checkpointing 16.0 s") != std::string::npos);
    // It cannot have been longer than it has trained.
    CHECK(use.shares(begin + seconds(25)).training == seconds(10));
    CHECK(use.shares(begin + seconds(25)).checkpointing == seconds(12));
    // When a rank failed without telling its last step, the step of another rank counts.
    use.note_told(Generation(1), 13, seconds(0));
    CHECK(use.shares(begin + seconds(99)).redone > seconds(3));
}
