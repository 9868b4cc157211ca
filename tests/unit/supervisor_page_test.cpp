// Cells of agent/supervise/README.md that concern the page shared with workers: what they are
// started with, being asked to leave, until when they may publish.

#include <algorithm>
#include <csignal>
#include <string>

#include "agent/supervise/lease_watch.hpp"
#include "agent/supervise/supervisor.hpp"
#include "tests/support/catch.hpp"
#include "tests/unit/supervisor_fixture.hpp"
#include "worker_runtime/contract/exit_codes.hpp"

namespace ddprun::agent {

namespace {

std::string variable(const WorkerSpec& worker, const std::string& key) {
    const auto found = std::find_if(worker.environment.begin(), worker.environment.end(),
                                    [&key](const auto& pair) { return pair.first == key; });
    return found == worker.environment.end() ? "not set" : found->second;
}

constexpr Milliseconds kBeat{200};      // of a lease of a second
constexpr Milliseconds kDoubtful{800};  // after the last thing that is known to have arrived

/// Runs generation 1 on a link with leases; the join was sent at the rig's present.
struct RigWithLease : Rig {
    RigWithLease() {
        become_waiting(kBeat);
        hear(Rig::row(1, 1));
    }
};

/// Sends the beats that are due until `time` has passed, unanswered; true if nothing but beats and
/// words came of it.
bool is_quiet(Rig& rig, Milliseconds time) {
    bool is_quiet = true;
    for (Milliseconds passed{0}; passed < time; passed += kBeat) {
        rig.pass(kBeat);
        is_quiet = is_quiet && !rig.does<AllowPublishing>();
    }
    return is_quiet;
}

/// Until when workers may publish, as they are told now; none: nothing is told.
std::optional<Instant> told_until(const Rig& rig) {
    const std::optional<AllowPublishing> told = rig.effect<AllowPublishing>();
    return told.has_value() ? std::optional(told->until) : std::nullopt;
}

/// The same for workers that start now.
std::optional<Instant> started_until(const Rig& rig) {
    const std::optional<StartWorkers> start = rig.effect<StartWorkers>();
    return start.has_value() ? std::optional(start->publish_until) : std::nullopt;
}

void reconnect(Rig& rig, const std::string& run_token = "t1") {
    rig.give(LinkDown{"reset"});
    rig.give(LinkUp{"10.0.0.1"});
    rig.hear(rdzv::Accepted{.run_token = run_token, .lease = kBeat * 5, .beat_interval = kBeat});
}

/// The next beat is sent and answered.
void beat(Rig& rig) {
    rig.pass(kBeat);
    REQUIRE(rig.sent<rdzv::Beat>().size() == 1);
    rig.hear(rdzv::Acknowledge{rig.sent<rdzv::Beat>()[0].sequence});
}

}  // namespace

TEST_CASE("workers are told this node's address and why their generation started") {
    Rig rig;
    rig.become_gone();
    rdzv::Start row = Rig::row(2, 1);
    row.why = "rank 3 on gpu-02 exited with code 1";
    rig.hear(row);
    const auto start = rig.effect<StartWorkers>();
    REQUIRE(start.has_value());
    for (const WorkerSpec& worker : start->workers) {
        CHECK(variable(worker, "DDPRUN_LOCAL_ADDR") == "10.0.0.1");
        CHECK(variable(worker, "DDPRUN_START_REASON") == row.why);
        CHECK(variable(worker, "DDPRUN_PAGE").empty());
    }
}

TEST_CASE("the address that workers are told is the one that was chosen for the store") {
    SupervisorOptions options = two_slot_options();
    options.store_host = "192.168.1.7";
    Rig rig(options);
    rig.give(LinkUp{"10.0.0.1"});
    rig.give(StoreOpened{{"192.168.1.7", 4001}});
    rig.hear(rdzv::Accepted{.run_token = "t1"});
    rig.hear(Rig::row(1, 1));
    REQUIRE(rig.does<StartWorkers>());
    CHECK(variable(rig.effect<StartWorkers>()->workers[0], "DDPRUN_LOCAL_ADDR") == "192.168.1.7");
    CHECK(variable(rig.effect<StartWorkers>()->workers[0], "DDPRUN_START_REASON").empty());
}

// ----------------------------------------------------------------------------------------- drains

TEST_CASE("a drain asks those that look at the page and signals only the others") {
    const rdzv::StopCause cause = GENERATE(rdzv::StopCause::Grow, rdzv::StopCause::Leave);
    Rig rig;
    rig.become_running();
    rig.hear(Rig::stop(cause, 1, Milliseconds(30000)));
    REQUIRE(rig.does<AskWorkersToLeave>());
    CHECK(rig.effect<AskWorkersToLeave>()->generation == Generation(1));
    CHECK(rig.effect<AskWorkersToLeave>()->signal == SIGTERM);
    CHECK(rig.effect<AskWorkersToLeave>()->deadline == rig.now + Milliseconds(30000));
    REQUIRE(rig.does<SignalWorkers>());
    CHECK(rig.effect<SignalWorkers>()->spares_asked);
    // A worker that reads the page between the two effects must see it written.
    CHECK(std::holds_alternative<AskWorkersToLeave>(rig.effects.front()));
    rig.pass(Milliseconds(30000));
    CHECK(rig.does<EmptyGeneration>());
}

TEST_CASE("a stop for a failure or a fence asks nobody and signals all") {
    const rdzv::StopCause cause = GENERATE(rdzv::StopCause::Failure, rdzv::StopCause::Fenced);
    Rig rig;
    rig.become_running();
    rig.hear(Rig::stop(cause));
    CHECK_FALSE(rig.does<AskWorkersToLeave>());
    REQUIRE(rig.does<SignalWorkers>());
    CHECK_FALSE(rig.effect<SignalWorkers>()->spares_asked);
}

TEST_CASE("a drain that becomes a stop signals all and tells the nearer deadline") {
    Rig rig;
    rig.become_running();
    rig.hear(Rig::stop(rdzv::StopCause::Leave, 1, Milliseconds(30000)));
    rig.hear(Rig::stop(rdzv::StopCause::Failure, 1, Milliseconds(2000)));
    REQUIRE(rig.does<AskWorkersToLeave>());
    CHECK(rig.effect<AskWorkersToLeave>()->deadline == rig.now + Milliseconds(2000));
    REQUIRE(rig.does<SignalWorkers>());
    CHECK_FALSE(rig.effect<SignalWorkers>()->spares_asked);
    rig.hear(Rig::stop(rdzv::StopCause::Failure, 1, Milliseconds(2000)));
    CHECK_FALSE(rig.does<AskWorkersToLeave>());
    CHECK_FALSE(rig.does<SignalWorkers>());
}

TEST_CASE("a drain after a stop changes nothing about the stop") {
    Rig rig;
    rig.become_stopping();
    rig.hear(Rig::stop(rdzv::StopCause::Leave, 1, Milliseconds(1000)));
    CHECK_FALSE(rig.does<AskWorkersToLeave>());
    CHECK_FALSE(rig.does<SignalWorkers>());
}

TEST_CASE("a drain with another signal sends that to those that were not asked") {
    Rig rig;
    rig.become_running();
    rig.hear(Rig::stop(rdzv::StopCause::Grow));
    rdzv::Stop interrupt = Rig::stop(rdzv::StopCause::Leave);
    interrupt.signal = SIGINT;
    rig.hear(interrupt);
    CHECK_FALSE(rig.does<AskWorkersToLeave>());
    REQUIRE(rig.does<SignalWorkers>());
    CHECK(rig.effect<SignalWorkers>()->signal == SIGINT);
    CHECK(rig.effect<SignalWorkers>()->spares_asked);
}

TEST_CASE("a node that drains alone asks its workers too") {
    Rig rig;
    rig.become_running();
    rig.give(LinkDown{"connection refused"});
    rig.give(Signalled{SIGINT});
    REQUIRE(rig.does<AskWorkersToLeave>());
    CHECK(rig.effect<AskWorkersToLeave>()->signal == SIGINT);
    CHECK(rig.effect<SignalWorkers>()->spares_asked);
}

TEST_CASE("a stop that ends the agent signals all, also in the middle of a drain") {
    Rig rig;
    rig.become_running();
    rig.hear(Rig::stop(rdzv::StopCause::Leave, 1, Milliseconds(30000)));
    rig.give(LinkDown{"refused for good", true});
    REQUIRE(rig.does<SignalWorkers>());
    CHECK_FALSE(rig.effect<SignalWorkers>()->spares_asked);
}

TEST_CASE("workers that leave with 75 when asked are neither success nor failure") {
    Rig rig;
    rig.become_running();
    rig.hear(Rig::stop(rdzv::StopCause::Grow));
    rig.exit(0, kExitDrained);
    rig.exit(1, kExitDrained);
    CHECK_FALSE(rig.sends_anything());
    CHECK(rig.does<EmptyGeneration>());
    rig.give(Emptied{Generation(1)});
    CHECK(rig.sent<rdzv::Stopped>().size() == 1);
}

// ------------------------------------------------------------------------------------- publishing

TEST_CASE("workers may publish until 0.8 leases after the sending of what was answered last") {
    RigWithLease rig;
    CHECK(started_until(rig) == rig.now + kDoubtful);
    CHECK_FALSE(rig.does<AllowPublishing>());
    for (int i = 0; i < 20; ++i) {
        beat(rig);
        REQUIRE(rig.does<AllowPublishing>());
        CHECK(rig.effect<AllowPublishing>()->generation == Generation(1));
        CHECK(told_until(rig) == rig.now + kDoubtful);
        // No wake-up but for the next beat.
        CHECK(rig.supervisor.next_deadline() == rig.now + kBeat);
    }
}

TEST_CASE("nobody wakes to tell workers that nothing is answered any more") {
    RigWithLease rig;
    for (int i = 0; i < 7; ++i) {
        CHECK(is_quiet(rig, kBeat));
        CHECK_FALSE(rig.does<DropLink>());
    }
    beat(rig);
    CHECK(told_until(rig) == rig.now + kDoubtful);
}

TEST_CASE("a connection on which nothing is answered is dropped, once") {
    RigWithLease rig;
    const Instant heard_at = rig.now;
    int drops = 0;
    for (int i = 0; i < 25; ++i) {
        rig.pass(kBeat);
        if (rig.does<DropLink>()) {
            ++drops;
            CHECK(rig.now - heard_at >= Limits{}.link_silence_max);
        }
    }
    CHECK(drops == 1);
}

TEST_CASE("the rendezvous is lost after its time, whether connections can be made or not") {
    RigWithLease rig;
    rig.give(LinkDown{.why = "gone"});
    const Milliseconds patience = SupervisorOptions{}.rendezvous_lost_timeout;
    Milliseconds passed{0};
    while (!rig.does<Exit>() && passed < 2 * patience) {
        // Connected again and again, and never answered.
        rig.give(LinkUp{"10.0.0.1"});
        rig.pass(Milliseconds(1000));
        passed += Milliseconds(1000);
        if (!rig.does<SignalWorkers>() && !rig.does<Exit>()) {
            rig.give(LinkDown{.why = "reset"});
        } else {
            break;
        }
    }
    CHECK(passed >= patience);
    CHECK(passed <= patience + Milliseconds(1000));
}

TEST_CASE("beats that are rarer than the lease is trusted cost no further wake-up") {
    Rig rig;
    rig.give(LinkUp{"10.0.0.1"});
    rig.give(StoreOpened{{"10.0.0.1", 4001}});
    rig.hear(rdzv::Accepted{
        .run_token = "t1", .lease = Milliseconds(1000), .beat_interval = Milliseconds(900)});
    rig.hear(Rig::row(1, 1));
    CHECK(started_until(rig) == rig.now + kDoubtful);
    CHECK(rig.supervisor.next_deadline() == rig.now + Milliseconds(900));
}

TEST_CASE("an answer counts from when its beat was sent, not from when it came") {
    RigWithLease rig;
    rig.pass(kBeat);
    const Instant sent_at = rig.now;
    const std::uint64_t first = rig.sent<rdzv::Beat>()[0].sequence;
    CHECK(is_quiet(rig, kDoubtful - kBeat - kBeat));
    rig.hear(rdzv::Acknowledge{first});
    CHECK(told_until(rig) == sent_at + kDoubtful);
    CHECK(is_quiet(rig, kDoubtful));
    // Again, of the future, and of a beat that is older than what is trusted: nothing is proven.
    rig.hear(rdzv::Acknowledge{first});
    CHECK_FALSE(rig.does<AllowPublishing>());
    rig.hear(rdzv::Acknowledge{first + 100});
    CHECK_FALSE(rig.does<AllowPublishing>());
    rig.pass(Milliseconds(3000));
    rig.hear(rdzv::Acknowledge{first + 1});
    CHECK_FALSE(rig.does<AllowPublishing>());
}

TEST_CASE("an agent that was held up allows nothing by answers that waited for it") {
    RigWithLease rig;
    rig.pass(kBeat);
    const Instant sent_at = rig.now;
    const std::uint64_t sequence = rig.sent<rdzv::Beat>()[0].sequence;
    rig.now += Milliseconds(3000);
    rig.hear(rdzv::Acknowledge{sequence});
    REQUIRE(told_until(rig).has_value());
    CHECK(*told_until(rig) == sent_at + kDoubtful);
    CHECK(*told_until(rig) < rig.now);
}

TEST_CASE("a start that was long under way finds its workers isolated at once") {
    Rig rig;
    rig.become_waiting(kBeat);
    const Instant joined_at = rig.now;
    CHECK(is_quiet(rig, Milliseconds(2000)));
    rig.hear(Rig::row(1, 1));
    CHECK(started_until(rig) == joined_at + kDoubtful);
    CHECK_FALSE(rig.does<AllowPublishing>());
}

TEST_CASE("a new generation starts with what the link has proven so far") {
    Rig rig;
    rig.become_waiting(kBeat);
    beat(rig);
    const Instant sent_at = rig.now;
    rig.now += Milliseconds(150);
    rig.hear(Rig::row(1, 1));
    CHECK(started_until(rig) == sent_at + kDoubtful);
}

TEST_CASE("workers are isolated while the link is down, and until a beat is answered again") {
    RigWithLease rig;
    rig.give(LinkDown{"reset"});
    CHECK(told_until(rig) == Instant::min());
    reconnect(rig);
    // The fence of one that was replaced comes right behind this.
    CHECK_FALSE(rig.does<AllowPublishing>());
    beat(rig);
    CHECK(told_until(rig) == rig.now + kDoubtful);
}

TEST_CASE("workers of a generation that is no longer the run's stay isolated") {
    RigWithLease fenced;
    fenced.hear(Rig::stop(rdzv::StopCause::Fenced));
    CHECK(told_until(fenced) == Instant::min());
    CHECK(std::holds_alternative<AllowPublishing>(fenced.effects.front()));
    beat(fenced);
    CHECK_FALSE(fenced.does<AllowPublishing>());

    RigWithLease behind;
    behind.hear(Rig::stop(rdzv::StopCause::Failure, 2));
    CHECK(told_until(behind) == Instant::min());
    beat(behind);
    CHECK_FALSE(behind.does<AllowPublishing>());

    RigWithLease other_run;
    reconnect(other_run, "t2");
    beat(other_run);
    CHECK_FALSE(other_run.does<AllowPublishing>());
}

TEST_CASE("a failure or a drain does not isolate: this generation is still the newest") {
    const rdzv::StopCause cause = GENERATE(rdzv::StopCause::Failure, rdzv::StopCause::Grow);
    RigWithLease rig;
    rig.hear(Rig::stop(cause));
    CHECK_FALSE(rig.does<AllowPublishing>());
    beat(rig);
    CHECK(told_until(rig) == rig.now + kDoubtful);
}

TEST_CASE("a rendezvous in this process is never out of reach") {
    Rig rig;
    rig.become_running();
    CHECK(started_until(rig) == Instant::max());
    rig.pass(Milliseconds(60000));
    CHECK_FALSE(rig.does<AllowPublishing>());
    CHECK_FALSE(rig.supervisor.next_deadline().has_value());
}

TEST_CASE("nobody is told anything where nobody lives") {
    Rig rig;
    rig.become_waiting(kBeat);
    beat(rig);
    CHECK_FALSE(rig.does<AllowPublishing>());
    rig.give(LinkDown{"reset"});
    CHECK_FALSE(rig.does<AllowPublishing>());

    RigWithLease gone;
    gone.hear(Rig::stop());
    gone.exit(0, 143);
    gone.exit(1, 143);
    gone.give(Emptied{Generation(1)});
    gone.give(LinkDown{"reset"});
    CHECK_FALSE(gone.does<AllowPublishing>());
}

TEST_CASE("a closed run that grants no lease lifts no isolation") {
    RigWithLease rig;
    rig.give(LinkDown{"reset"});
    rig.give(LinkUp{"10.0.0.1"});
    rig.hear(rdzv::Accepted{.run_token = "t1"});
    CHECK_FALSE(rig.does<AllowPublishing>());
}

TEST_CASE("a lease counts from the sending of the last beat that was answered") {
    LeaseWatch lease;
    const Instant start{};
    lease.begin(Milliseconds(1000), start);
    CHECK(lease.held_until() == start + kDoubtful);
    lease.beat_sent(1, start + kBeat);
    lease.beat_sent(2, start + kBeat + kBeat);
    lease.acknowledged(2);
    CHECK(lease.held_until() == start + kBeat + kBeat + kDoubtful);
    // Late, and never sent: neither proves anything.
    lease.acknowledged(1);
    lease.acknowledged(7);
    CHECK(lease.held_until() == start + kBeat + kBeat + kDoubtful);
    lease.end();
    CHECK(lease.held_until() == Instant::min());
}

TEST_CASE("unanswered beats are forgotten once their answers could prove nothing") {
    LeaseWatch lease;
    Instant now{};
    lease.begin(Milliseconds(1000), now);
    for (std::uint64_t sequence = 1; sequence < 1000; ++sequence) {
        now += kBeat;
        lease.beat_sent(sequence, now);
        CHECK(lease.unanswered_count() <= 4);
    }
    lease.acknowledged(999);
    CHECK(lease.held_until() == now + kDoubtful);
}

}  // namespace ddprun::agent
