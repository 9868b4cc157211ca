// Cells of agent/supervise/README.md that end an agent: signals, leaving, verdict, refusal.

#include <csignal>

#include "agent/supervise/supervisor.hpp"
#include "tests/support/catch.hpp"
#include "tests/unit/supervisor_fixture.hpp"
#include "worker_runtime/contract/exit_codes.hpp"

namespace ddprun::agent {

namespace {

rdzv::Verdict verdict_of(rdzv::VerdictKind kind, int exit_code) {
    rdzv::Verdict verdict;
    verdict.kind = kind;
    verdict.exit_code = exit_code;
    return verdict;
}

}  // namespace

TEST_CASE("a signal before the job was joined ends the agent at once") {
    Rig fresh;
    fresh.give(Signalled{SIGTERM});
    CHECK(fresh.exit_code() == 128 + SIGTERM);
    Rig joining;
    joining.give(LinkUp{"10.0.0.1"});
    joining.give(StoreOpened{{"10.0.0.1", 4001}});
    joining.give(Signalled{SIGINT});
    CHECK(joining.sent<rdzv::Goodbye>().size() == 1);
    CHECK(joining.exit_code() == 128 + SIGINT);
}

TEST_CASE("a signal asks to leave, and being released ends the agent") {
    Rig rig;
    rig.become_running();
    rig.give(Signalled{SIGTERM});
    CHECK(rig.sent<rdzv::Leave>()[0].signal == SIGTERM);
    CHECK(rig.said() ==
          "SIGTERM: stopping, workers have 30 s to save and end; press Ctrl-C after 1 s to abort");
    CHECK_FALSE(rig.does<SignalWorkers>());
    rig.hear(Rig::stop(rdzv::StopCause::Leave));
    CHECK(rig.does<SignalWorkers>());
    rig.exit(0, 75);
    rig.exit(1, 75);
    rig.give(Emptied{Generation(1)});
    CHECK(rig.sent<rdzv::Stopped>().size() == 1);
    CHECK(rig.supervisor.explain() == "waiting for the other nodes to drain");
    rig.hear(rdzv::Released{});
    CHECK(rig.sent<rdzv::Goodbye>().size() == 1);
    CHECK(rig.exit_code() == 128 + SIGTERM);
    CHECK(rig.effect<Exit>()->why == "SIGTERM: this node has left the job");
}

TEST_CASE("a worker that was ended by a key at its terminal has not failed: the job is left") {
    const int signal = GENERATE(SIGINT, SIGQUIT);
    Rig rig;
    rig.become_running();
    rdzv::Evidence evidence;
    evidence.signal = signal;
    rig.give(WorkerExited{Generation(1), LocalRank(1), evidence, signal});
    CHECK(rig.sent<rdzv::WorkerFailed>().empty());
    REQUIRE(rig.sent<rdzv::Leave>().size() == 1);
    CHECK(rig.sent<rdzv::Leave>()[0].signal == signal);
    CHECK(rig.said().find(": stopping, workers have 30 s to save and end; ") != std::string::npos);
    rig.hear(Rig::stop(rdzv::StopCause::Leave));
    rig.exit(0, 75);
    CHECK(rig.does<EmptyGeneration>());
    rig.give(Emptied{Generation(1)});
    rig.hear(rdzv::Released{});
    CHECK(rig.exit_code() == 128 + signal);
}

TEST_CASE("when the last worker here was ended by a key nothing is drained or said") {
    Rig rig;
    rig.become_running();
    rig.exit(0, 0);
    rdzv::Evidence evidence;
    evidence.exit_code = 130;
    rig.give(WorkerExited{Generation(1), LocalRank(1), evidence, SIGINT});
    CHECK(rig.sent<rdzv::Leave>().size() == 1);
    CHECK(rig.said().empty());
    rig.hear(Rig::stop(rdzv::StopCause::Leave));
    CHECK(rig.does<EmptyGeneration>());
}

TEST_CASE("a key that ends a worker in a stop, or after a signal, changes nothing") {
    Rig stopping;
    stopping.become_stopping();
    rdzv::Evidence evidence;
    evidence.signal = SIGINT;
    stopping.give(WorkerExited{Generation(1), LocalRank(0), evidence, SIGINT});
    CHECK_FALSE(stopping.sends_anything());
    Rig leaving;
    leaving.become_running();
    leaving.give(Signalled{SIGTERM});
    leaving.give(WorkerExited{Generation(1), LocalRank(0), evidence, SIGINT});
    CHECK_FALSE(leaving.sends_anything());
    leaving.hear(rdzv::Released{});
    leaving.exit(1, 75);
    leaving.give(Emptied{Generation(1)});
    CHECK(leaving.exit_code() == 128 + SIGTERM);
}

TEST_CASE("signals for the workers are passed on while there are workers") {
    Rig rig;
    rig.become_waiting();
    rig.give(WorkersSignalled{SIGUSR1});
    CHECK_FALSE(rig.does<ForwardSignal>());
    CHECK(rig.said() == "SIGUSR1: there are no workers to pass it on to");
    rig.hear(Rig::row(1, 1));
    rig.give(WorkersSignalled{SIGUSR2});
    REQUIRE(rig.does<ForwardSignal>());
    CHECK(rig.effect<ForwardSignal>()->signal == SIGUSR2);
    CHECK(rig.effect<ForwardSignal>()->generation == Generation(1));
    CHECK_FALSE(rig.sends_anything());
    rig.hear(Rig::stop(rdzv::StopCause::Leave));
    rig.give(WorkersSignalled{SIGUSR1});
    CHECK(rig.does<ForwardSignal>());
    rig.exit(0, 75);
    rig.exit(1, 75);
    REQUIRE(rig.does<EmptyGeneration>());
    rig.give(WorkersSignalled{SIGUSR1});
    CHECK_FALSE(rig.does<ForwardSignal>());
}

TEST_CASE("a waiting node leaves without workers to drain") {
    Rig rig;
    rig.become_waiting();
    rig.give(Signalled{SIGHUP});
    CHECK(rig.sent<rdzv::Leave>().size() == 1);
    CHECK(rig.said() == "SIGHUP: leaving the job");
    rig.hear(rdzv::Released{});
    CHECK(rig.exit_code() == 128 + SIGHUP);
}

TEST_CASE("who presses Ctrl-C reads whether the workers save, and how to abort") {
    Rig saving;
    saving.become_running();
    saving.give(Signalled{.signal = SIGINT, .workers_save = true});
    CHECK(saving.said() ==
          "SIGINT: saving, for at most 30 s; press Ctrl-C again after 1 s to abort");
    Rig others;
    others.become_running();
    others.give(Signalled{SIGINT});
    CHECK(others.said() ==
          "SIGINT: stopping, workers have 30 s to save and end; press Ctrl-C again after 1 s to "
          "abort");
}

namespace {

/// Both workers have been asked to leave, and do.
void leave(Rig& rig, int exit_code, std::uint64_t step, const SavedWork& saved) {
    rig.hear(Rig::stop(rdzv::StopCause::Leave));
    for (int i = 0; i < 2; ++i) {
        rdzv::Evidence evidence;
        evidence.exit_code = exit_code;
        evidence.progress = step;
        rig.give(WorkerExited{.generation = Generation(1),
                              .local_rank = LocalRank(i),
                              .evidence = evidence,
                              .saved = saved});
    }
    rig.give(Emptied{Generation(1)});
    rdzv::Verdict verdict;
    verdict.kind = rdzv::VerdictKind::Stopped;
    rig.hear(verdict);
}

}  // namespace

TEST_CASE("an agent that ends after its workers have saved says what, and where") {
    const bool is_signalled = GENERATE(true, false);
    Rig rig;
    rig.become_running();
    if (is_signalled) {
        rig.give(Signalled{SIGINT});
    }
    leave(rig, kExitDrained, 107, {.place = "/data/llama", .is_newer = true});
    CHECK(rig.said() == "saved step 107 in /data/llama; the same command goes on from it");
    CHECK(rig.does<Exit>());
}

TEST_CASE("whether a checkpoint is of the last step is said only if that is known") {
    Rig rig;
    rig.become_running();
    rig.give(Signalled{SIGINT});
    leave(rig, kExitDrained, 107, {.place = "/data/llama"});
    CHECK(rig.said() ==
          "left after step 107; the same command goes on from the newest checkpoint in "
          "/data/llama");
}

TEST_CASE("nothing is said of work that nobody has told to be saved") {
    const auto [exit_code, saved] =
        GENERATE(std::pair(0, SavedWork{.place = "/data/llama", .is_newer = true}),
                 std::pair(143, SavedWork{.place = "/data/llama", .is_newer = true}),
                 std::pair(int{kExitDrained}, SavedWork{.is_newer = true}));
    Rig rig;
    rig.become_running();
    rig.give(Signalled{SIGINT});
    leave(rig, exit_code, 107, saved);
    CHECK(rig.said().empty());
    CHECK(rig.does<Exit>());
}

TEST_CASE("a repeated SIGTERM and an early second Ctrl-C change nothing") {
    Rig rig;
    rig.become_running();
    rig.give(Signalled{SIGINT});
    rig.pass(Milliseconds(999));
    rig.give(Signalled{SIGINT});
    CHECK(rig.effects.empty());
    rig.pass(Milliseconds(5000));
    rig.give(Signalled{SIGTERM});
    CHECK(rig.effects.empty());
}

TEST_CASE("a second Ctrl-C after a second aborts") {
    Rig rig;
    rig.become_running();
    rig.give(Signalled{SIGINT});
    rig.pass(Milliseconds(1000));
    rig.give(Signalled{SIGINT});
    CHECK(rig.does<EmptyGeneration>());
    rig.give(Emptied{Generation(1)});
    CHECK(rig.sent<rdzv::Goodbye>().size() == 1);
    CHECK(rig.exit_code() == 128 + SIGINT);
}

TEST_CASE("a second Ctrl-C while the verdict is carried out kills what is left") {
    Rig rig;
    rig.become_running();
    rig.hear(verdict_of(rdzv::VerdictKind::Failed, 9));
    CHECK(rig.does<SignalWorkers>());
    rig.give(Signalled{SIGINT});
    CHECK_FALSE(rig.sends_anything());
    rig.pass(Milliseconds(1000));
    rig.give(Signalled{SIGINT});
    CHECK(rig.does<EmptyGeneration>());
    rig.give(Emptied{Generation(1)});
    CHECK(rig.exit_code() == 9);
}

TEST_CASE("leaving without a rendezvous drains this node alone") {
    Rig rig;
    rig.become_running();
    rig.give(LinkDown{"connection refused"});
    rig.give(Signalled{SIGINT});
    REQUIRE(rig.does<SignalWorkers>());
    CHECK(rig.effect<SignalWorkers>()->signal == SIGINT);
    rig.pass(Milliseconds(30000));
    CHECK(rig.does<EmptyGeneration>());
    rig.give(Emptied{Generation(1)});
    CHECK(rig.exit_code() == 128 + SIGINT);
}

TEST_CASE("a rendezvous that is lost while leaving is no reason to stay") {
    Rig with_workers;
    with_workers.become_running();
    with_workers.give(Signalled{SIGTERM});
    with_workers.give(LinkDown{"connection reset"});
    CHECK(with_workers.does<SignalWorkers>());
    Rig without;
    without.become_gone();
    without.give(Signalled{SIGTERM});
    without.give(LinkDown{"connection reset"});
    CHECK(without.exit_code() == 128 + SIGTERM);
}

TEST_CASE("success empties what is left, shows the verdict and ends with 0") {
    Rig rig;
    rig.become_running(0);
    rig.exit(0, 0);
    rig.exit(1, 0);
    rig.hear(verdict_of(rdzv::VerdictKind::Succeeded, 0));
    CHECK(rig.does<EmptyGeneration>());
    CHECK_FALSE(rig.does<SignalWorkers>());
    CHECK_FALSE(rig.does<ShowVerdict>());
    rig.give(Emptied{Generation(1)});
    CHECK(rig.does<CloseStore>());
    CHECK_FALSE(rig.does<OpenStore>());
    CHECK(rig.does<ShowVerdict>());
    CHECK(rig.sent<rdzv::Goodbye>().size() == 1);
    CHECK(rig.exit_code() == 0);
}

TEST_CASE("a failure stops living workers before it is shown") {
    Rig rig;
    rig.become_running();
    rig.hear(verdict_of(rdzv::VerdictKind::Failed, 17));
    CHECK(rig.effect<SignalWorkers>()->signal == SIGTERM);
    CHECK_FALSE(rig.does<ShowVerdict>());
    rig.pass(Milliseconds(5000));
    CHECK(rig.does<EmptyGeneration>());
    rig.give(Emptied{Generation(1)});
    CHECK(rig.does<ShowVerdict>());
    CHECK(rig.exit_code() == 17);
}

TEST_CASE("a node without workers ends with the verdict at once, a spare too") {
    Rig rig;
    rig.become_waiting();
    rig.hear(verdict_of(rdzv::VerdictKind::Incomplete, kExitNodesMissing));
    CHECK(rig.does<ShowVerdict>());
    CHECK(rig.exit_code() == kExitNodesMissing);
}

TEST_CASE("a stopped run ends a signalled agent with its signal and others with 75") {
    Rig signalled;
    signalled.become_gone();
    signalled.give(Signalled{SIGTERM});
    signalled.hear(verdict_of(rdzv::VerdictKind::Stopped, kExitDrained));
    CHECK(signalled.exit_code() == 128 + SIGTERM);
    Rig other;
    other.become_gone();
    other.hear(verdict_of(rdzv::VerdictKind::Stopped, kExitDrained));
    CHECK(other.exit_code() == kExitDrained);
}

TEST_CASE("a refused join ends the agent with the reason and without a goodbye") {
    Rig rig;
    rig.give(LinkUp{"10.0.0.1"});
    rig.give(StoreOpened{{"10.0.0.1", 4001}});
    rig.hear(rdzv::Refused{.text = "join refused: another --nnodes", .exit_code = 2});
    CHECK(rig.said() == "join refused: another --nnodes");
    CHECK_FALSE(rig.sends_anything());
    CHECK(rig.exit_code() == 2);
}

TEST_CASE("a refused rejoin stops the workers first") {
    Rig rig;
    rig.become_running();
    rig.give(LinkDown{"reset"});
    rig.give(LinkUp{"10.0.0.1"});
    rig.hear(rdzv::Refused{.text = "another ddprun took this node's place", .exit_code = 69});
    CHECK(rig.does<SignalWorkers>());
    CHECK_FALSE(rig.does<Exit>());
    rig.give(LinkDown{"closed"});
    rig.exit(0, 143);
    rig.exit(1, 143);
    rig.give(Emptied{Generation(1)});
    CHECK(rig.exit_code() == 69);
}

TEST_CASE("nothing happens after the exit") {
    Rig rig;
    rig.give(Signalled{SIGTERM});
    REQUIRE(rig.does<Exit>());
    rig.give(LinkUp{"10.0.0.1"});
    CHECK(rig.effects.empty());
    CHECK_FALSE(rig.supervisor.next_deadline().has_value());
    CHECK(rig.supervisor.explain().empty());
}

TEST_CASE("a stop that takes its time is explained") {
    Rig rig;
    rig.become_stopping();
    CHECK(rig.supervisor.explain() == "waiting for local ranks 0, 1 to end after SIGTERM");
    rig.exit(0, 143);
    CHECK(rig.supervisor.explain() == "waiting for local rank 1 to end after SIGTERM");
    rig.exit(1, 143);
    CHECK(rig.supervisor.explain() ==
          "waiting for the killed processes of generation 1 to be gone");
}

}  // namespace ddprun::agent
