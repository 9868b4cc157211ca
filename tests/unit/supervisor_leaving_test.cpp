// Notices that this node will be taken away: when its workers are asked to leave, and how long they
// have.

#include <chrono>
#include <csignal>

#include "agent/supervise/leave_deadlines.hpp"
#include "agent/supervise/supervisor.hpp"
#include "tests/support/catch.hpp"
#include "tests/unit/supervisor_fixture.hpp"
#include "worker_runtime/contract/exit_codes.hpp"

namespace ddprun::agent {

namespace {

using std::chrono::seconds;

constexpr Milliseconds kShutdown{30000};  // to save and leave
constexpr seconds kReserve{3};
const Instant kStart = Instant(seconds(1000));

LeaveDeadlines deadlines(std::optional<Milliseconds> kill_wait = {}) {
    return {Limits{}, kShutdown, kill_wait};
}

LeaveNotice time_limit(Instant at) {
    return {.why = "slurm job 42.0 reaches its time limit", .gone_at = at, .is_planned = true};
}

LeaveNotice notice(std::optional<Instant> at = {}) {
    return {.why = "AWS takes this instance", .gone_at = at};
}

SupervisorOptions options_with_end(Instant at) {
    SupervisorOptions options = two_slot_options();
    options.known_end = time_limit(at);
    return options;
}

}  // namespace

TEST_CASE("nothing asks for a drain, and workers have all of their grace") {
    const LeaveDeadlines none = deadlines();
    CHECK_FALSE(none.due_at(false).has_value());
    CHECK(none.within(kStart, kShutdown) == kShutdown);
}

TEST_CASE("before an end that was to be expected workers are left the time to save") {
    LeaveDeadlines found = deadlines();
    const Instant end = kStart + seconds(3600);
    found.add(kStart, time_limit(end));
    CHECK(found.due_at(false) == end - kShutdown - kReserve);
    CHECK(found.why(end - seconds(33)) == "slurm job 42.0 reaches its time limit in 33 s");
    found.learn_saving(seconds(4));
    CHECK(found.due_at(false) == end - seconds(8) - kReserve);
    found.learn_saving(seconds(29));
    CHECK(found.due_at(false) == end - kShutdown - kReserve);
}

TEST_CASE("of a short time at most a half goes for leaving") {
    LeaveDeadlines found = deadlines();
    found.add(kStart, time_limit(kStart + seconds(20)));
    CHECK(found.due_at(false) == kStart + seconds(10));
}

TEST_CASE("what comes by surprise is due at once, and has until its own deadline") {
    LeaveDeadlines found = deadlines();
    found.add(kStart, time_limit(kStart + seconds(3600)));
    const Instant later = kStart + seconds(60);
    found.add(later, notice(later + seconds(20)));
    CHECK(found.due_at(false) == later);
    CHECK(found.why(later) == "AWS takes this instance in 20 s");
    CHECK(found.within(later, kShutdown) == seconds(17));
    CHECK(found.within(later, seconds(5)) == seconds(5));
}

TEST_CASE("of several deadlines the earliest counts, whoever has told it") {
    LeaveDeadlines found = deadlines();
    found.add(kStart, time_limit(kStart + seconds(15)));
    found.add(kStart, notice());
    CHECK(found.due_at(false) == kStart);
    CHECK(found.why(kStart) == "AWS takes this instance");
    CHECK(found.within(kStart, kShutdown) == seconds(12));
}

TEST_CASE("who sends SIGTERM is known to kill later") {
    LeaveDeadlines found = deadlines(Milliseconds(30000));
    CHECK(found.within(kStart, kShutdown) == kShutdown);
    found.take_sigterm(kStart);
    CHECK_FALSE(found.due_at(false).has_value());
    CHECK(found.within(kStart, kShutdown) == seconds(27));
    CHECK(found.within(kStart + seconds(26), kShutdown) == seconds(2));
    CHECK(found.within(kStart + seconds(40), kShutdown) == seconds(0));
    LeaveDeadlines unknown = deadlines();
    unknown.take_sigterm(kStart);
    CHECK(unknown.within(kStart, kShutdown) == kShutdown);
}

TEST_CASE("workers are asked to leave in time before a time limit") {
    const Instant end = Rig{}.now + seconds(3600);
    Rig rig(options_with_end(end));
    rig.become_running();
    rig.give(Tick{});
    CHECK(rig.supervisor.next_deadline() == end - seconds(33));
    rig.pass(seconds(3600 - 33));
    REQUIRE(rig.sent<rdzv::Leave>().size() == 1);
    CHECK(rig.sent<rdzv::Leave>()[0].signal == SIGTERM);
    CHECK(rig.said() ==
          "slurm job 42.0 reaches its time limit in 33 s: stopping, workers have 30 s to save and "
          "end; press Ctrl-C after 1 s to abort");
    rig.hear(Rig::stop(rdzv::StopCause::Leave, 1, kShutdown));
    CHECK(rig.effect<AskWorkersToLeave>()->deadline == end - kReserve);
    rig.exit(0, 0);
    rig.exit(1, 0);
    rig.give(Emptied{Generation(1)});
    CHECK(rig.supervisor.leave_cause() == LeaveCause::None);
    rig.hear(rdzv::Released{});
    CHECK(rig.exit_code() == kExitDrained);
    CHECK(rig.supervisor.leave_cause() == LeaveCause::TimeLimit);
}

TEST_CASE("with what saving took the last time the end comes later") {
    const Instant end = Rig{}.now + seconds(3600);
    Rig rig(options_with_end(end));
    rig.become_running();
    rig.hear(Rig::stop(rdzv::StopCause::Grow, 1, kShutdown));
    rig.pass(seconds(2));
    rig.exit(0, 0);
    rig.exit(1, 0);
    rig.give(Emptied{Generation(1)});
    rig.hear(Rig::row(2, 1));
    rig.give(Tick{});
    CHECK(rig.supervisor.next_deadline() == end - seconds(4) - kReserve);
}

TEST_CASE("what saving took is told at the end, and known at the next start") {
    Rig first;
    first.become_running();
    CHECK_FALSE(first.supervisor.saving().has_value());
    first.hear(Rig::stop(rdzv::StopCause::Grow, 1, kShutdown));
    first.pass(seconds(2));
    first.exit(0, 0);
    first.exit(1, 0);
    CHECK(first.supervisor.saving() == seconds(2));

    const Instant end = Rig{}.now + seconds(3600);
    SupervisorOptions options = options_with_end(end);
    options.saving = first.supervisor.saving();
    Rig next(options);
    next.become_running();
    next.give(Tick{});
    CHECK(next.supervisor.next_deadline() == end - seconds(4) - kReserve);
    CHECK(next.supervisor.saving() == seconds(2));
}

TEST_CASE("a drain shortly before the end is this node's last") {
    const Instant end = Rig{}.now + seconds(3600);
    Rig rig(options_with_end(end));
    rig.become_running();
    rig.pass(seconds(3600 - 60));
    CHECK_FALSE(rig.sends_anything());
    rig.hear(Rig::stop(rdzv::StopCause::Leave, 1, kShutdown));
    CHECK(rig.sent<rdzv::Leave>().size() == 1);
}

TEST_CASE("a notice begins a drain, and its deadline is the workers'") {
    Rig rig;
    rig.become_running();
    rig.give(notice(rig.now + seconds(20)));
    REQUIRE(rig.sent<rdzv::Leave>().size() == 1);
    CHECK(rig.said() ==
          "AWS takes this instance in 20 s: stopping, workers have 17 s to save and end; "
          "press Ctrl-C after 1 s to abort");
    rig.hear(Rig::stop(rdzv::StopCause::Leave, 1, kShutdown));
    CHECK(rig.effect<AskWorkersToLeave>()->deadline == rig.now + seconds(17));
    rig.give(notice(rig.now + seconds(20)));
    CHECK_FALSE(rig.sends_anything());
    CHECK_FALSE(rig.does<AskWorkersToLeave>());
    rig.give(notice(rig.now + seconds(10)));
    CHECK(rig.effect<AskWorkersToLeave>()->deadline == rig.now + seconds(7));
    CHECK_FALSE(rig.does<SignalWorkers>());
    rig.pass(seconds(7));
    CHECK(rig.does<EmptyGeneration>());
}

TEST_CASE("who leaves by a deadline tells what its workers have, and the others know it") {
    Rig leaver;
    leaver.become_running();
    leaver.give(notice(leaver.now + seconds(20)));
    REQUIRE(leaver.sent<rdzv::Leave>().size() == 1);
    CHECK(leaver.sent<rdzv::Leave>()[0].within == seconds(17));

    Rig without;
    without.become_running();
    without.give(notice());
    CHECK(without.sent<rdzv::Leave>()[0].within == seconds(0));

    // Their own deadline stays: what they save by themselves is not cut short.
    Rig other;
    other.become_running();
    rdzv::Stop stop = Rig::stop(rdzv::StopCause::Leave, 1, kShutdown);
    stop.within = seconds(17);
    other.hear(stop);
    CHECK(other.effect<AskWorkersToLeave>()->deadline == other.now + seconds(17));
    other.hear(stop);
    CHECK_FALSE(other.does<AskWorkersToLeave>());
    other.pass(seconds(17));
    CHECK_FALSE(other.does<EmptyGeneration>());
    other.pass(kShutdown - seconds(17));
    CHECK(other.does<EmptyGeneration>());
}

TEST_CASE("a notice where no workers are is reason enough to leave") {
    Rig waiting;
    waiting.become_waiting();
    waiting.give(notice());
    CHECK(waiting.said() == "AWS takes this instance: leaving the job");
    CHECK(waiting.sent<rdzv::Leave>().size() == 1);
    Rig fresh;
    fresh.give(notice());
    CHECK(fresh.exit_code() == kExitDrained);
    CHECK(fresh.said() == "AWS takes this instance: leaving the job");
    Rig cut_off;
    cut_off.become_running();
    cut_off.give(LinkDown{"connection refused"});
    cut_off.give(notice());
    CHECK(cut_off.effect<AskWorkersToLeave>()->deadline == cut_off.now + kShutdown);
}

TEST_CASE("a signal before a notice says with what the agent exits") {
    Rig rig;
    rig.become_running();
    rig.give(Signalled{SIGTERM});
    rig.give(notice());
    CHECK_FALSE(rig.sends_anything());
    rig.hear(Rig::stop(rdzv::StopCause::Leave));
    rig.exit(0, 0);
    rig.exit(1, 0);
    rig.give(Emptied{Generation(1)});
    rig.hear(rdzv::Released{});
    CHECK(rig.exit_code() == 128 + SIGTERM);
    CHECK(rig.supervisor.leave_cause() == LeaveCause::Signal);
}

TEST_CASE("a job that ended otherwise, or by Ctrl-C, was not left in time") {
    Rig interrupted;
    interrupted.become_waiting();
    interrupted.give(Signalled{SIGINT});
    interrupted.hear(rdzv::Released{});
    CHECK(interrupted.exit_code() == 128 + SIGINT);
    CHECK(interrupted.supervisor.leave_cause() == LeaveCause::None);
    Rig succeeded;
    succeeded.become_waiting();
    succeeded.give(notice());
    rdzv::Verdict verdict;
    verdict.kind = rdzv::VerdictKind::Succeeded;
    succeeded.hear(verdict);
    CHECK(succeeded.exit_code() == 0);
    CHECK(succeeded.supervisor.leave_cause() == LeaveCause::None);
    Rig stopped;
    stopped.become_waiting();
    stopped.give(notice());
    verdict.kind = rdzv::VerdictKind::Stopped;
    stopped.hear(verdict);
    CHECK(stopped.exit_code() == kExitDrained);
    CHECK(stopped.supervisor.leave_cause() == LeaveCause::Notice);
}

TEST_CASE("a scheduler that kills later is said and kept to") {
    SupervisorOptions options = two_slot_options();
    options.kill_wait = Milliseconds(10000);
    Rig rig(std::move(options));
    rig.become_running();
    rig.give(Signalled{SIGTERM});
    CHECK(rig.said() ==
          "SIGTERM: stopping, workers have 7 s to save and end; press Ctrl-C after 1 s to abort");
    rig.hear(Rig::stop(rdzv::StopCause::Leave, 1, kShutdown));
    CHECK(rig.effect<AskWorkersToLeave>()->deadline == rig.now + seconds(7));
}

}  // namespace ddprun::agent
