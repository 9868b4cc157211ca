// A worker that is dying abnormally and not reaped yet: cells of agent/supervise/README.md
// for WorkerDying, and what follows.

#include <csignal>

#include "agent/supervise/supervisor.hpp"
#include "tests/support/catch.hpp"
#include "tests/unit/supervisor_fixture.hpp"

namespace ddprun::agent {

namespace {

WorkerDying dying_by(int signal, int local_rank = 0, int generation = 1) {
    WorkerDying dying{
        Generation(static_cast<std::uint64_t>(generation)), LocalRank(local_rank), {}};
    dying.evidence.signal = signal;
    return dying;
}

WorkerDying dying_with(int exit_code) {
    WorkerDying dying{Generation(1), LocalRank(0), {}};
    dying.evidence.exit_code = exit_code;
    return dying;
}

}  // namespace

TEST_CASE("a worker on its way out is reported at once, and not again when it is gone") {
    Rig rig;
    rig.become_running();
    rig.give(dying_by(SIGKILL));
    REQUIRE(rig.sent<rdzv::WorkerFailed>().size() == 1);
    CHECK(rig.sent<rdzv::WorkerFailed>()[0].evidence.signal == SIGKILL);
    rig.give(dying_by(SIGKILL));
    CHECK_FALSE(rig.sends_anything());
    rig.die(0, SIGKILL);
    CHECK_FALSE(rig.sends_anything());
}

TEST_CASE("a worker on its way out is waited for: nothing is emptied before it is gone") {
    Rig rig;
    rig.become_running();
    rig.give(dying_with(3));
    rig.hear(Rig::stop());
    CHECK(rig.does<SignalWorkers>());
    rig.exit(1, 143);
    CHECK_FALSE(rig.does<EmptyGeneration>());
    rig.exit(0, 3);
    CHECK(rig.does<EmptyGeneration>());
}

TEST_CASE("a worker that takes too long to end is killed at the deadline of the stop") {
    Rig rig;
    rig.become_running();
    rig.give(dying_by(SIGSEGV));
    rig.hear(Rig::stop());
    rig.exit(1, 143);
    rig.pass(Milliseconds(5000));
    CHECK(rig.does<EmptyGeneration>());
}

TEST_CASE("a failure told while its worker was on its way out is told again after a reconnect") {
    Rig rig;
    rig.become_running();
    rig.give(dying_by(SIGSEGV));
    rig.give(LinkDown{"reset", false});
    rig.give(LinkUp{"10.0.0.1"});
    rig.hear(rdzv::Accepted{.run_token = "t1"});
    REQUIRE(rig.sent<rdzv::WorkerFailed>().size() == 1);
    CHECK(rig.sent<rdzv::WorkerFailed>()[0].evidence.signal == SIGSEGV);
}

TEST_CASE("a core that was still being written is told of when it is there") {
    Rig rig;
    rig.become_running();
    rig.give(dying_by(SIGSEGV));
    rdzv::Evidence evidence;
    evidence.signal = SIGSEGV;
    evidence.core_dumped = true;
    rig.give(WorkerExited{Generation(1), LocalRank(0), evidence});
    REQUIRE(rig.sent<rdzv::WorkerFailed>().size() == 1);
    CHECK(rig.sent<rdzv::WorkerFailed>()[0].evidence.core_dumped);
}

TEST_CASE("a signal that may be meant for all says nothing before the process is gone") {
    const int signal = GENERATE(SIGTERM, SIGINT, SIGHUP);
    Rig rig;
    rig.become_running();
    rig.give(dying_by(signal));
    CHECK_FALSE(rig.sends_anything());
    rig.die(0, signal);
    rig.pass(Limits{}.signal_death_patience);
    CHECK(rig.sent<rdzv::WorkerFailed>().size() == 1);
}

TEST_CASE("who dies after a stop, while the node leaves, or of another generation is no failure") {
    Rig rig;
    SECTION("no generation") {
        rig.become_waiting();
        rig.give(dying_with(1));
    }
    SECTION("another generation") {
        rig.become_running();
        rig.give(dying_by(SIGKILL, 0, 2));
    }
    SECTION("stopped") {
        rig.become_stopping();
        rig.give(dying_with(1));
    }
    SECTION("killing") {
        rig.become_killing();
        rig.give(dying_with(1));
    }
    SECTION("leaving") {
        rig.become_running();
        rig.give(Signalled{SIGTERM});
        rig.give(dying_with(1));
    }
    SECTION("finished") {
        rig.become_running();
        rig.exit(0, 0);
        rig.give(dying_with(1));
    }
    CHECK_FALSE(rig.sends_anything());
}

TEST_CASE("when the keeper dies with one that was on its way out, that one stays the first") {
    Rig rig;
    rig.become_running();
    rig.give(dying_by(SIGSEGV, 1));
    rig.give(KeeperLost{});
    REQUIRE(rig.sent<rdzv::WorkerFailed>().size() == 1);
    CHECK(rig.sent<rdzv::WorkerFailed>()[0].local_rank == LocalRank(0));
    CHECK(rig.sent<rdzv::WorkerFailed>()[0].evidence.keeper_lost);
}

// ------------------------------------------------------------------------- what a worker left
// behind

namespace {

LastWords words_of(int local_rank, std::string stderr_tail = "dying words\n") {
    return {Generation(1), LocalRank(local_rank), std::move(stderr_tail), {}};
}

}  // namespace

TEST_CASE("a failure is reported before its last words are read, and again with them") {
    Rig rig;
    rig.is_disk_slow = true;
    rig.become_running();
    rig.exit(0, 3);
    REQUIRE(rig.sent<rdzv::WorkerFailed>().size() == 1);
    CHECK(rig.effect<CollectLastWords>()->local_rank == LocalRank(0));
    rig.pass(Milliseconds(1500));
    rig.give(words_of(0));
    REQUIRE(rig.sent<rdzv::WorkerFailed>().size() == 1);
    const rdzv::Evidence evidence = rig.sent<rdzv::WorkerFailed>()[0].evidence;
    CHECK(evidence.exit_code == 3);
    CHECK(evidence.stderr_tail == "dying words\n");
    CHECK(evidence.age == Milliseconds(1500));
    rig.give(words_of(0));
    CHECK_FALSE(rig.sends_anything());
}

TEST_CASE("a stop does not hide the failure of a worker whose last words are still being read") {
    Rig rig;
    rig.is_disk_slow = true;
    rig.become_running();
    rig.exit(0, 3);
    rig.hear(Rig::stop(rdzv::StopCause::Grow));
    rig.give(words_of(0));
    REQUIRE(rig.sent<rdzv::WorkerFailed>().size() == 1);
    CHECK(rig.sent<rdzv::WorkerFailed>()[0].evidence.stderr_tail == "dying words\n");
}

TEST_CASE("a node says that it has stopped once the last words of its failed workers are read") {
    Rig rig;
    rig.is_disk_slow = true;
    rig.become_running();
    rig.exit(0, 3);
    rig.hear(Rig::stop());
    rig.exit(1, 143);
    rig.give(Emptied{Generation(1)});
    CHECK(rig.sent<rdzv::Stopped>().empty());
    CHECK(rig.supervisor.explain().find("last words") != std::string::npos);
    const bool has_words = GENERATE(true, false);
    rig.give(words_of(0, has_words ? "dying words\n" : ""));
    CHECK(rig.sent<rdzv::WorkerFailed>().size() == (has_words ? 1 : 0));
    CHECK(rig.sent<rdzv::Stopped>().size() == 1);
    CHECK(std::holds_alternative<SendToRendezvous>(rig.effects.front()));
}

TEST_CASE("a dying worker's last words are read when it dies, and only then") {
    Rig rig;
    rig.is_disk_slow = true;
    rig.become_running();
    rig.give(dying_by(SIGSEGV));
    CHECK(rig.does<CollectLastWords>());
    rig.give(words_of(0));
    CHECK(rig.sent<rdzv::WorkerFailed>()[0].evidence.stderr_tail == "dying words\n");
    rig.die(0, SIGSEGV);
    CHECK_FALSE(rig.does<CollectLastWords>());
}

TEST_CASE("who is ended by a signal for all has its last words read while it is held back") {
    Rig rig;
    rig.is_disk_slow = true;
    rig.become_running();
    rig.die(0, SIGTERM);
    CHECK(rig.does<CollectLastWords>());
    rig.give(words_of(0));
    CHECK_FALSE(rig.sends_anything());
    rig.pass(Limits{}.signal_death_patience);
    REQUIRE(rig.sent<rdzv::WorkerFailed>().size() == 1);
    CHECK(rig.sent<rdzv::WorkerFailed>()[0].evidence.stderr_tail == "dying words\n");
}

TEST_CASE("nobody waits for the last words of a worker that was forgiven, or of no failure") {
    Rig rig;
    rig.is_disk_slow = true;
    rig.become_running();
    rig.exit(1, 0);
    CHECK_FALSE(rig.does<CollectLastWords>());
    rig.die(0, SIGTERM);
    rig.hear(Rig::stop(rdzv::StopCause::Leave));
    rig.give(Emptied{Generation(1)});
    CHECK(rig.sent<rdzv::Stopped>().size() == 1);
}

TEST_CASE("last words that come with the next generation belong to nobody") {
    Rig rig;
    rig.is_disk_slow = true;
    rig.become_running();
    rig.give(words_of(0));
    CHECK_FALSE(rig.sends_anything());
    rig.give(LastWords{Generation(2), LocalRank(0), "x", {}});
    CHECK_FALSE(rig.sends_anything());
}

}  // namespace ddprun::agent
