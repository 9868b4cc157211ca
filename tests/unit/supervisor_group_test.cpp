// One test per cell of agent/supervise/README.md that concerns a generation: start, deaths,
// stop, proof of emptiness.

#include <csignal>

#include "agent/supervise/supervisor.hpp"
#include "tests/support/catch.hpp"
#include "tests/unit/supervisor_fixture.hpp"
#include "worker_runtime/contract/exit_codes.hpp"

namespace ddprun::agent {

TEST_CASE("a start becomes workers with their ranks") {
    Rig rig;
    rig.become_waiting();
    rig.hear(Rig::row(1, 1));
    const auto start = rig.effect<StartWorkers>();
    REQUIRE(start.has_value());
    CHECK(start->generation == Generation(1));
    CHECK(start->base_rank == Rank(2));
    REQUIRE(start->workers.size() == 2);
    CHECK(start->workers[1].local_rank == LocalRank(1));
    CHECK(start->workers[1].command == std::vector<std::string>{"/bin/train", "--device=1"});
    CHECK(start->workers[1].log_dir == "/logs/llama_0/attempt_0/1");
    CHECK_FALSE(rig.does<ServeStore>());
    CHECK(rig.supervisor.held_generation() == Generation(1));
    CHECK(rig.said() == "generation 1: 4 workers on 2 nodes, ranks 2-3 here");
}

TEST_CASE("the first generation of a single-node job starts without a word") {
    Rig rig(two_slot_options(1));
    rig.become_waiting();
    rdzv::Start row = Rig::row();
    row.group_world_size = 1;
    row.world_size = 2;
    rig.hear(row);
    CHECK(rig.does<StartWorkers>());
    CHECK(rig.said().empty());
}

TEST_CASE("a later generation says why it exists") {
    Rig rig;
    rig.become_gone();
    rdzv::Start row = Rig::row(2, 1);
    row.why = "rank 3 on gpu-02 exited with code 1";
    rig.hear(row);
    CHECK(
        rig.said() ==
        "generation 2: 4 workers on 2 nodes, ranks 2-3 here; rank 3 on gpu-02 exited with code 1");
}

TEST_CASE("group rank 0 serves the store before its workers start") {
    Rig rig;
    rig.become_waiting();
    rig.hear(Rig::row());
    REQUIRE(rig.does<ServeStore>());
    CHECK(rig.effect<ServeStore>()->admitted == std::vector<std::string>{"10.0.0.1", "10.0.0.9"});
    CHECK(rig.effect<ServeStore>()->clients == Rig::row().world_size);
    CHECK(std::holds_alternative<ServeStore>(rig.effects.front()));
    CHECK(std::holds_alternative<StartWorkers>(rig.effects.back()));
}

TEST_CASE("a start of a known generation changes nothing") {
    Rig rig;
    rig.become_running();
    rig.hear(Rig::row(1, 1));
    CHECK_FALSE(rig.does<StartWorkers>());
    rig.hear(Rig::stop());
    rig.exit(0, 0);
    rig.exit(1, 0);
    rig.give(Emptied{Generation(1)});
    rig.hear(Rig::row(1, 1));
    CHECK_FALSE(rig.does<StartWorkers>());
}

TEST_CASE("a start beside living workers ends the agent instead of mixing generations") {
    Rig rig;
    rig.become_running();
    rig.hear(Rig::row(2, 1));
    CHECK_FALSE(rig.does<StartWorkers>());
    CHECK(rig.does<SignalWorkers>());
    rig.exit(0, 143);
    rig.exit(1, 143);
    rig.give(Emptied{Generation(1)});
    CHECK(rig.exit_code() == kExitInternal);
}

TEST_CASE("a start with another store than ours for group rank 0 is not carried out") {
    Rig rig;
    rig.become_waiting();
    rdzv::Start row = Rig::row();
    row.store.port = 9;
    rig.hear(row);
    CHECK_FALSE(rig.does<StartWorkers>());
    CHECK(rig.exit_code() == kExitInternal);
}

TEST_CASE("a start whose ranks do not fit is not carried out") {
    Rig rig;
    rig.become_waiting();
    rdzv::Start row = Rig::row(1, 1);
    row.base_rank = 3;
    rig.hear(row);
    CHECK_FALSE(rig.does<StartWorkers>());
    CHECK(rig.exit_code() == kExitInternal);
}

// ---------------------------------------------------------------------------------------- deaths

TEST_CASE("exit 0 is reported as finished, and the agent stays") {
    Rig rig;
    rig.become_running();
    rig.exit(0, 0);
    REQUIRE(rig.sent<rdzv::WorkerFinished>().size() == 1);
    CHECK(rig.sent<rdzv::WorkerFinished>()[0].local_rank == LocalRank(0));
    rig.exit(1, 0);
    CHECK(rig.sent<rdzv::WorkerFinished>().size() == 1);
    CHECK_FALSE(rig.does<EmptyGeneration>());
    CHECK_FALSE(rig.does<Exit>());
    CHECK(rig.supervisor.held_generation() == Generation(1));
}

TEST_CASE("a failure is reported at once, and siblings are left to the rendezvous") {
    Rig rig;
    rig.become_running();
    rig.exit(1, 17);
    REQUIRE(rig.sent<rdzv::WorkerFailed>().size() == 1);
    CHECK(rig.sent<rdzv::WorkerFailed>()[0].evidence.exit_code == 17);
    CHECK_FALSE(rig.does<SignalWorkers>());
    rig.exit(1, 18);
    CHECK_FALSE(rig.sends_anything());
}

TEST_CASE("a program that could not be executed is a failure") {
    Rig rig;
    rig.become_running();
    rdzv::Evidence evidence;
    evidence.exec_errno = 2;
    rig.give(WorkerExited{Generation(1), LocalRank(0), evidence});
    REQUIRE(rig.sent<rdzv::WorkerFailed>().size() == 1);
    CHECK(rig.sent<rdzv::WorkerFailed>()[0].evidence.exec_errno == 2);
}

TEST_CASE("a death by a scheduler's signal is judged only after our own signals") {
    const int signal = GENERATE(SIGTERM, SIGINT, SIGHUP);
    Rig rig;
    rig.become_running();
    rig.die(0, signal);
    CHECK_FALSE(rig.sends_anything());
    const Limits limits;
    CHECK(rig.supervisor.next_deadline() == rig.now + limits.signal_death_patience);
    rig.pass(limits.signal_death_patience);
    REQUIRE(rig.sent<rdzv::WorkerFailed>().size() == 1);
    CHECK(rig.sent<rdzv::WorkerFailed>()[0].evidence.signal == signal);
    CHECK(rig.sent<rdzv::WorkerFailed>()[0].evidence.age == limits.signal_death_patience);
}

TEST_CASE("a death by a signal just before our own is part of leaving") {
    Rig rig;
    rig.become_running();
    rig.die(0, SIGTERM);
    rig.pass(Milliseconds(50));
    rig.give(Signalled{SIGTERM});
    CHECK(rig.sent<rdzv::Leave>().size() == 1);
    CHECK(rig.sent<rdzv::WorkerFailed>().empty());
    rig.pass(Milliseconds(1000));
    CHECK(rig.sent<rdzv::WorkerFailed>().empty());
}

TEST_CASE("other signals are failures at once") {
    const int signal = GENERATE(SIGKILL, SIGSEGV, SIGQUIT);
    Rig rig;
    rig.become_running();
    rig.die(0, signal);
    CHECK(rig.sent<rdzv::WorkerFailed>().size() == 1);
}

TEST_CASE("exits while leaving are neither success nor failure") {
    Rig rig;
    rig.become_running();
    rig.give(Signalled{SIGTERM});
    rig.exit(0, 0);
    CHECK_FALSE(rig.sends_anything());
    rig.exit(1, 1);
    CHECK_FALSE(rig.sends_anything());
}

TEST_CASE("exits after a stop are neither success nor failure") {
    Rig rig;
    rig.become_stopping();
    rig.exit(0, 0);
    CHECK_FALSE(rig.sends_anything());
    rig.exit(1, 9);
    CHECK_FALSE(rig.sends_anything());
    CHECK(rig.does<EmptyGeneration>());
}

TEST_CASE("exits of another generation or of none are ignored") {
    Rig rig;
    rig.become_waiting();
    rig.exit(0, 1);
    CHECK(rig.effects.empty());
    rig.hear(Rig::row(1, 1));
    rig.exit(0, 1, 7);
    CHECK_FALSE(rig.sends_anything());
}

TEST_CASE("a lost keeper fails the lowest of the workers that had not ended") {
    Rig rig;
    rig.become_running();
    rig.exit(0, 0);
    rig.give(KeeperLost{});
    REQUIRE(rig.sent<rdzv::WorkerFailed>().size() == 1);
    CHECK(rig.sent<rdzv::WorkerFailed>()[0].local_rank == LocalRank(1));
    CHECK(rig.sent<rdzv::WorkerFailed>()[0].evidence.keeper_lost);
    rig.hear(Rig::stop());
    CHECK(rig.does<EmptyGeneration>());
    CHECK_FALSE(rig.does<SignalWorkers>());
}

TEST_CASE("a keeper lost while stopping ends the wait for the workers") {
    Rig rig;
    rig.become_stopping();
    rig.give(KeeperLost{});
    CHECK_FALSE(rig.sends_anything());
    CHECK(rig.does<EmptyGeneration>());
}

TEST_CASE("a keeper lost while emptying is asked again through the next one") {
    Rig rig;
    rig.become_killing();
    rig.give(KeeperLost{});
    CHECK(rig.does<EmptyGeneration>());
    rig.give(Emptied{Generation(1)});
    CHECK(rig.sent<rdzv::Stopped>().size() == 1);
    rig.give(KeeperLost{});
    CHECK(rig.effects.empty());
}

// ------------------------------------------------------------------------------------------ stop

TEST_CASE("a stop signals, waits for the grace, kills, proves and answers") {
    Rig rig;
    rig.become_running();
    rig.hear(Rig::stop());
    REQUIRE(rig.does<SignalWorkers>());
    CHECK(rig.effect<SignalWorkers>()->signal == SIGTERM);
    rig.pass(Milliseconds(4999));
    CHECK_FALSE(rig.does<EmptyGeneration>());
    rig.pass(Milliseconds(1));
    CHECK(rig.does<EmptyGeneration>());
    CHECK(rig.supervisor.held_generation().has_value());
    rig.pass(Milliseconds(70));
    rig.give(Emptied{Generation(1)});
    REQUIRE(rig.sent<rdzv::Stopped>().size() == 1);
    CHECK(rig.sent<rdzv::Stopped>()[0].store == StoreAddress{"10.0.0.1", 4001});
    CHECK(rig.sent<rdzv::Stopped>()[0].ended_age == Milliseconds(70));
    CHECK(rig.sent<rdzv::Stopped>()[0].empty_age == Milliseconds(0));
    CHECK_FALSE(rig.supervisor.held_generation().has_value());
    // Told again after a reconnect, as of then.
    rig.give(LinkDown{"connection reset"});
    rig.pass(Milliseconds(1000));
    rig.give(LinkUp{"10.0.0.1"});
    rig.hear(rdzv::Accepted{.run_token = "t1"});
    REQUIRE(rig.sent<rdzv::Stopped>().size() == 1);
    CHECK(rig.sent<rdzv::Stopped>()[0].ended_age == Milliseconds(1070));
    CHECK(rig.sent<rdzv::Stopped>()[0].empty_age == Milliseconds(1000));
}

TEST_CASE("workers reach another node's store through a relay where that is wanted") {
    SupervisorOptions options = two_slot_options();
    options.relays_store = GENERATE(false, true);
    const int group_rank = GENERATE(0, 1);
    Rig rig(options);
    rig.become_waiting();
    const rdzv::Start row = Rig::row(1, group_rank);
    rig.hear(row);
    REQUIRE(rig.effect<StartWorkers>().has_value());
    const auto relayed = rig.effect<StartWorkers>()->relayed_store;
    REQUIRE(relayed.has_value() == (options.relays_store && group_rank == 1));
    CHECK(relayed.value_or(row.store) == row.store);
    rig.exit(0, 0);
    rig.exit(1, 0);
    rig.hear(Rig::stop());
    rig.give(Emptied{Generation(1)});
    CHECK(rig.does<CloseStore>() == (options.relays_store || group_rank == 0));
}

TEST_CASE("a stop after all workers have ended goes straight to the proof") {
    Rig rig;
    rig.become_running();
    rig.exit(0, 0);
    rig.exit(1, 3);
    rig.hear(Rig::stop());
    CHECK_FALSE(rig.does<SignalWorkers>());
    CHECK(rig.does<EmptyGeneration>());
}

TEST_CASE("group rank 0 answers a stop with a new store socket") {
    Rig rig;
    rig.become_killing(0);
    rig.give(Emptied{Generation(1)});
    CHECK(rig.does<CloseStore>());
    CHECK(rig.does<OpenStore>());
    CHECK_FALSE(rig.sends_anything());
    rig.give(StoreOpened{{"10.0.0.1", 4002}});
    REQUIRE(rig.sent<rdzv::Stopped>().size() == 1);
    CHECK(rig.sent<rdzv::Stopped>()[0].store.port == 4002);
}

TEST_CASE("a second stop shortens the grace and never lengthens it") {
    Rig rig;
    rig.become_running();
    rig.hear(Rig::stop(rdzv::StopCause::Grow, 1, Milliseconds(30000)));
    rig.hear(Rig::stop(rdzv::StopCause::Failure, 1, Milliseconds(2000)));
    rig.hear(Rig::stop(rdzv::StopCause::Grow, 1, Milliseconds(30000)));
    CHECK_FALSE(rig.does<AskWorkersToLeave>());
    CHECK_FALSE(rig.does<SignalWorkers>());
    rig.pass(Milliseconds(2000));
    CHECK(rig.does<EmptyGeneration>());
}

TEST_CASE("a second stop with another signal sends that too") {
    Rig rig;
    rig.become_stopping();
    rdzv::Stop sharper = Rig::stop();
    sharper.signal = SIGQUIT;
    rig.hear(sharper);
    REQUIRE(rig.does<SignalWorkers>());
    CHECK(rig.effect<SignalWorkers>()->signal == SIGQUIT);
}

TEST_CASE("a stop while emptying waits for the proof") {
    Rig rig;
    rig.become_killing();
    rig.hear(Rig::stop());
    CHECK_FALSE(rig.does<EmptyGeneration>());
    CHECK_FALSE(rig.sends_anything());
}

TEST_CASE("a stop of a generation that is gone is answered again") {
    Rig rig;
    rig.become_gone();
    rig.hear(Rig::stop());
    REQUIRE(rig.sent<rdzv::Stopped>().size() == 1);
    CHECK(rig.sent<rdzv::Stopped>()[0].generation == Generation(1));
}

TEST_CASE("an old stop does not touch the workers of a newer generation") {
    Rig rig;
    rig.become_gone();
    rig.hear(Rig::row(2, 1));
    rig.hear(Rig::stop(rdzv::StopCause::Failure, 1));
    CHECK_FALSE(rig.does<SignalWorkers>());
    REQUIRE(rig.sent<rdzv::Stopped>().size() == 1);
    CHECK(rig.sent<rdzv::Stopped>()[0].generation == Generation(1));
    CHECK(rig.supervisor.held_generation() == Generation(2));
}

TEST_CASE("a stop of a generation never seen is answered, and that generation never starts") {
    Rig rig;
    rig.become_waiting();
    rig.hear(Rig::stop(rdzv::StopCause::Fenced, 4));
    REQUIRE(rig.sent<rdzv::Stopped>().size() == 1);
    CHECK(rig.sent<rdzv::Stopped>()[0].generation == Generation(4));
    rig.hear(Rig::row(4, 1));
    CHECK_FALSE(rig.does<StartWorkers>());
    rig.hear(Rig::row(5, 1));
    CHECK(rig.does<StartWorkers>());
}

TEST_CASE("a stop of a newer generation ends the older one first") {
    Rig rig;
    rig.become_running();
    rig.hear(Rig::stop(rdzv::StopCause::Failure, 2));
    CHECK(rig.does<SignalWorkers>());
    CHECK_FALSE(rig.sends_anything());
    rig.exit(0, 143);
    rig.exit(1, 143);
    rig.give(Emptied{Generation(1)});
    REQUIRE(rig.sent<rdzv::Stopped>().size() == 1);
    CHECK(rig.sent<rdzv::Stopped>()[0].generation == Generation(2));
}

TEST_CASE("a stop after a failure reports what was held back; a drain forgives it") {
    Rig failing;
    failing.become_running();
    failing.die(0, SIGTERM);
    failing.hear(Rig::stop(rdzv::StopCause::Failure));
    CHECK(failing.sent<rdzv::WorkerFailed>().size() == 1);
    Rig draining;
    draining.become_running();
    draining.die(0, SIGTERM);
    draining.hear(Rig::stop(rdzv::StopCause::Leave));
    CHECK(draining.sent<rdzv::WorkerFailed>().empty());
}

TEST_CASE("a proof for another generation or without a question is ignored") {
    Rig rig;
    rig.become_running();
    rig.give(Emptied{Generation(1)});
    CHECK(rig.supervisor.held_generation() == Generation(1));
    rig.hear(Rig::stop());
    rig.exit(0, 0);
    rig.exit(1, 0);
    rig.give(Emptied{Generation(9)});
    CHECK(rig.supervisor.held_generation() == Generation(1));
}

TEST_CASE("a worker that nothing kills takes the agent out of the job") {
    Rig rig;
    rig.become_killing();
    rig.give(NotEmptied{Generation(1), "pid 4242 (train)"});
    CHECK(rig.sent<rdzv::Unkillable>().size() == 1);
    CHECK(rig.exit_code() == kExitUnkillable);
    CHECK(rig.said().find("pid 4242") != std::string::npos);
}

// The keeper has died, and its workers cannot be swept: there is no other keeper to ask.
TEST_CASE("what a lost keeper leaves unkillable takes the agent out of the job at any time") {
    Rig rig;
    SECTION("while the workers run") {
        rig.become_running();
    }
    SECTION("while they are stopped") {
        rig.become_stopping();
    }
    SECTION("while their stacks are saved") {
        rig.become_running();
        rig.hear(Rig::stop(rdzv::StopCause::Hang));
        REQUIRE(rig.does<SaveStacks>());
    }
    rig.give(NotEmptied{Generation(1), "process 4242 (train)"});
    CHECK(rig.sent<rdzv::Unkillable>().size() == 1);
    CHECK(rig.exit_code() == kExitUnkillable);
    CHECK_FALSE(rig.does<EmptyGeneration>());
    CHECK(rig.said().find("process 4242") != std::string::npos);
}

TEST_CASE("an agent that holds no generation ends too when what is left cannot be killed") {
    Rig rig;
    rig.become_gone();
    rig.give(NotEmptied{Generation(), "process 4242 (train)"});
    CHECK(rig.sent<rdzv::Unkillable>().empty());
    CHECK(rig.exit_code() == kExitUnkillable);
}

}  // namespace ddprun::agent
