// Cells of agent/supervise/README.md that concern the link: joining, saying again, beats, loss.

#include <algorithm>
#include <csignal>
#include <string>
#include <utility>

#include "agent/supervise/supervisor.hpp"
#include "tests/support/catch.hpp"
#include "tests/unit/supervisor_fixture.hpp"
#include "worker_runtime/contract/exit_codes.hpp"

namespace ddprun::agent {

TEST_CASE("joining waits for a store socket on the link's own address") {
    Rig rig;
    rig.give(LinkUp{"10.0.0.1"});
    REQUIRE(rig.does<OpenStore>());
    CHECK(rig.effect<OpenStore>()->host == "10.0.0.1");
    CHECK_FALSE(rig.sends_anything());
    rig.give(StoreOpened{{"10.0.0.1", 4001}});
    REQUIRE(rig.sent<rdzv::Join>().size() == 1);
    const rdzv::Join join = rig.sent<rdzv::Join>()[0];
    CHECK(join.job == JobId("llama"));
    CHECK(join.slots == 2);
    CHECK(join.store == StoreAddress{"10.0.0.1", 4001});
    CHECK(join.run_token.empty());
    CHECK_FALSE(join.held.has_value());
}

TEST_CASE("an answer to a join that was never sent changes nothing") {
    Rig rig;
    rig.give(LinkUp{"10.0.0.1"});
    rig.hear(rdzv::Accepted{
        .run_token = "t1", .lease = Milliseconds(1000), .beat_interval = Milliseconds(100)});
    rig.pass(Milliseconds(100));
    CHECK_FALSE(rig.sends_anything());
    rig.give(StoreOpened{{"10.0.0.1", 4001}});
    REQUIRE(rig.sent<rdzv::Join>().size() == 1);
    CHECK(rig.sent<rdzv::Join>()[0].run_token.empty());
}

TEST_CASE("a rendezvous that would overlook --same strict is left at once, with what to change") {
    SupervisorOptions options = two_slot_options();
    options.identity.settings.same = rdzv::Sameness::Strict;
    const bool is_older = GENERATE(true, false);
    Rig rig(options);
    rig.give(LinkUp{"10.0.0.1"});
    rig.give(StoreOpened{{"10.0.0.1", 4001}});
    rig.hear(rdzv::Accepted{.run_token = "t1", .compares_nodes = !is_older});
    CHECK(rig.sent<rdzv::Goodbye>().size() == (is_older ? 1 : 0));
    if (is_older) {
        CHECK_THAT(rig.said(), Catch::Contains("would overlook --same strict; update it, or start "
                                               "with --same warn on every node"));
    }
    CHECK(rig.exit_code() == (is_older ? int{kExitUsage} : -1));
}

TEST_CASE("a rendezvous that would name no memory partner is left at once") {
    SupervisorOptions options = two_slot_options();
    options.identity.settings.memory_replicas = 1;
    const bool is_older = GENERATE(true, false);
    Rig rig(options);
    rig.give(LinkUp{"10.0.0.1"});
    rig.give(StoreOpened{{"10.0.0.1", 4001}});
    rig.hear(rdzv::Accepted{.run_token = "t1", .names_partners = !is_older});
    CHECK(rig.sent<rdzv::Goodbye>().size() == (is_older ? 1 : 0));
    if (is_older) {
        CHECK_THAT(rig.said(), Catch::Contains("would overlook --memory-replicas 1; update it, or "
                                               "start with --memory-replicas 0 on every node"));
    }
    CHECK(rig.exit_code() == (is_older ? int{kExitUsage} : -1));
}

TEST_CASE("a rendezvous that would overlook the sizes is left at once, with what to change") {
    SupervisorOptions options = two_slot_options();
    options.identity.settings.min_nodes = 2;
    options.identity.settings.max_nodes = 4;
    options.identity.settings.node_sizes = {2, 4};
    const bool is_older = GENERATE(true, false);
    Rig rig(options);
    rig.give(LinkUp{"10.0.0.1"});
    rig.give(StoreOpened{{"10.0.0.1", 4001}});
    rig.hear(rdzv::Accepted{.run_token = "t1", .keeps_sizes = !is_older});
    CHECK(rig.sent<rdzv::Goodbye>().size() == (is_older ? 1 : 0));
    if (is_older) {
        CHECK_THAT(rig.said(),
                   Catch::Contains("the rendezvous is an older ddprun's, which would overlook "
                                   "--nnodes 2,4; update it, or start with --nnodes 2:4"));
    }
    CHECK(rig.exit_code() == (is_older ? int{kExitUsage} : -1));
}

TEST_CASE("a chosen store address is used instead of the link's") {
    SupervisorOptions options = two_slot_options();
    options.store_host = "192.168.1.7";
    Rig rig(options);
    rig.give(LinkUp{"10.0.0.1"});
    CHECK(rig.effect<OpenStore>()->host == "192.168.1.7");
}

TEST_CASE("workers are told the memory partner of their generation") {
    Rig rig;
    rig.give(LinkUp{"10.0.0.1"});
    rig.give(StoreOpened{{"10.0.0.1", 4001}});
    rig.hear(rdzv::Accepted{.run_token = "t1"});
    rdzv::Start start = Rig::row();
    const bool has_partner = GENERATE(true, false);
    if (has_partner) {
        start.memory_partner = 3;
    }
    rig.hear(start);
    const auto started = rig.effect<StartWorkers>();
    REQUIRE(started.has_value());
    for (const WorkerSpec& worker : started->workers) {
        const std::pair<std::string, std::string> told{"DDPRUN_MEMORY_PARTNER",
                                                       has_partner ? "3" : ""};
        CHECK(std::count(worker.environment.begin(), worker.environment.end(), told) == 1);
    }
}

TEST_CASE("a store at the rendezvous needs no socket and workers find it there") {
    SupervisorOptions options = two_slot_options();
    options.is_store_at_rendezvous = true;
    Rig rig(options);
    rig.give(LinkUp{"10.0.0.1", {"10.0.0.9", 29400}});
    CHECK_FALSE(rig.does<OpenStore>());
    REQUIRE(rig.sent<rdzv::Join>().size() == 1);
    CHECK(rig.sent<rdzv::Join>()[0].store == StoreAddress{"10.0.0.1", 0});
    rig.hear(rdzv::Accepted{.run_token = "t1", .lease = {}, .beat_interval = {}});
    rdzv::Start start = Rig::row();
    start.store = {"10.0.0.1", 0};
    rig.hear(start);
    CHECK_FALSE(rig.does<ServeStore>());
    REQUIRE(rig.effect<StartWorkers>().has_value());
    const auto environment = rig.effect<StartWorkers>()->workers.front().environment;
    const auto has = [&](const std::string& key, const std::string& value) {
        return std::find(environment.begin(), environment.end(), std::pair{key, value}) !=
               environment.end();
    };
    CHECK(has("MASTER_ADDR", "10.0.0.9"));
    CHECK(has("MASTER_PORT", "29400"));
    SECTION("after a generation it is ready for the next one at once") {
        rig.hear(rdzv::Stop{.generation = Generation(1), .why = "a worker failed"});
        rig.die(0, SIGTERM);
        rig.die(1, SIGTERM);
        rig.give(Emptied{Generation(1)});
        CHECK_FALSE(rig.does<OpenStore>());
        REQUIRE(rig.sent<rdzv::Stopped>().size() == 1);
        CHECK(rig.sent<rdzv::Stopped>()[0].store == StoreAddress{"10.0.0.1", 0});
    }
    SECTION("a rejoin says what its Start said, not where this node found the store") {
        rig.give(LinkDown{"reset"});
        rig.give(LinkUp{"10.0.0.1", {"10.0.0.8", 29400}});
        REQUIRE(rig.sent<rdzv::Join>().size() == 1);
        CHECK(rig.sent<rdzv::Join>()[0].held->store == StoreAddress{"10.0.0.1", 0});
    }
}

TEST_CASE("a store socket that cannot be opened ends the agent with the reason") {
    Rig rig;
    rig.give(LinkUp{"10.0.0.1"});
    rig.give(StoreFailed{"10.0.0.1:29500: address already in use"});
    CHECK(rig.exit_code() == kExitUsage);
    CHECK(rig.said().find("29500") != std::string::npos);
}

TEST_CASE("a link that breaks before the store is open joins over the next one") {
    Rig rig;
    rig.give(LinkUp{"10.0.0.1"});
    rig.give(LinkDown{"reset"});
    rig.give(StoreOpened{{"10.0.0.1", 4001}});
    CHECK_FALSE(rig.sends_anything());
    rig.give(LinkUp{"10.0.0.1"});
    CHECK_FALSE(rig.does<OpenStore>());
    CHECK(rig.sent<rdzv::Join>().size() == 1);
}

TEST_CASE("a node with workers rejoins with its generation and its token") {
    Rig rig;
    rig.become_running(0);
    rig.give(LinkDown{"reset"});
    CHECK_FALSE(rig.does<SignalWorkers>());
    rig.give(LinkUp{"10.0.0.1"});
    REQUIRE(rig.sent<rdzv::Join>().size() == 1);
    const rdzv::Join join = rig.sent<rdzv::Join>()[0];
    CHECK(join.run_token == "t1");
    REQUIRE(join.held.has_value());
    CHECK(join.held->generation == Generation(1));
    CHECK(join.held->digest == "d1");
}

TEST_CASE("what happened while the link was down is said after the next join") {
    Rig rig;
    rig.become_running();
    rig.give(LinkDown{"reset"});
    rig.exit(0, 0);
    CHECK_FALSE(rig.sends_anything());
    rig.exit(1, 17);
    CHECK_FALSE(rig.sends_anything());
    rig.pass(Milliseconds(700));
    rig.give(LinkUp{"10.0.0.1"});
    CHECK(rig.sent<rdzv::WorkerFailed>().empty());
    rig.hear(rdzv::Accepted{.run_token = "t1"});
    REQUIRE(rig.sent<rdzv::WorkerFinished>().size() == 1);
    REQUIRE(rig.sent<rdzv::WorkerFailed>().size() == 1);
    CHECK(rig.sent<rdzv::WorkerFailed>()[0].evidence.age == Milliseconds(700));
}

TEST_CASE("an emptied generation is reported again after a reconnect, until a newer start") {
    Rig rig;
    rig.become_gone();
    rig.give(LinkDown{"reset"});
    rig.give(LinkUp{"10.0.0.1"});
    CHECK_FALSE(rig.sent<rdzv::Join>()[0].held.has_value());
    rig.hear(rdzv::Accepted{.run_token = "t1"});
    CHECK(rig.sent<rdzv::Stopped>().size() == 1);
    rig.hear(Rig::row(2, 1));
    rig.give(LinkDown{"reset"});
    rig.give(LinkUp{"10.0.0.1"});
    rig.hear(rdzv::Accepted{.run_token = "t1"});
    CHECK(rig.sent<rdzv::Stopped>().empty());
}

TEST_CASE("a signal while reconnecting is said after the join") {
    Rig rig;
    rig.become_running();
    rig.give(LinkDown{"reset"});
    rig.give(LinkUp{"10.0.0.1"});
    rig.give(Signalled{SIGTERM});
    CHECK_FALSE(rig.sends_anything());
    rig.hear(rdzv::Accepted{.run_token = "t1"});
    CHECK(rig.sent<rdzv::Leave>().size() == 1);
}

TEST_CASE("the generations of another run count from 1 again") {
    Rig rig;
    rig.become_gone();
    rig.give(LinkDown{"reset"});
    rig.give(LinkUp{"10.0.0.1"});
    rig.hear(rdzv::Accepted{.run_token = "t2"});
    rig.hear(Rig::row(1, 1));
    CHECK(rig.does<StartWorkers>());
}

TEST_CASE("a generation of an earlier run is not reported to another run") {
    Rig rig;
    rig.become_gone();
    rig.give(LinkDown{"reset"});
    rig.give(LinkUp{"10.0.0.1"});
    rig.hear(rdzv::Accepted{.run_token = "t2"});
    CHECK_FALSE(rig.sends_anything());
}

TEST_CASE("a fenced generation of an earlier run does not hide this run's of the same number") {
    Rig rig;
    rig.become_running();
    rig.give(LinkDown{"reset"});
    const bool is_empty_before_the_fence = GENERATE(false, true);
    if (is_empty_before_the_fence) {
        rig.give(Signalled{SIGHUP});
        rig.exit(0, 0);
        rig.exit(1, 0);
    }
    rig.give(LinkUp{"10.0.0.1"});
    CHECK(rig.sent<rdzv::Join>()[0].held.has_value());
    if (is_empty_before_the_fence) {
        rig.give(Emptied{Generation(1)});
    }
    rig.hear(rdzv::Accepted{.run_token = "t2"});
    CHECK(rig.sent<rdzv::Stopped>().empty());
    rig.hear(Rig::stop(rdzv::StopCause::Fenced));
    if (!is_empty_before_the_fence) {
        rig.exit(0, 143);
        rig.exit(1, 143);
        rig.give(Emptied{Generation(1)});
    }
    CHECK(rig.sent<rdzv::Stopped>().size() == 1);
    rig.hear(Rig::row(1, 1));
    CHECK(rig.does<StartWorkers>());
}

TEST_CASE("a stop that is said again is answered once the next store socket is open") {
    Rig rig;
    rig.become_killing(0);
    rig.give(LinkDown{"reset"});
    rig.give(LinkUp{"10.0.0.1"});
    rig.give(Emptied{Generation(1)});
    rig.hear(rdzv::Accepted{.run_token = "t1"});
    rig.hear(Rig::stop());
    CHECK_FALSE(rig.sends_anything());
    rig.give(StoreOpened{{"10.0.0.1", 4002}});
    REQUIRE(rig.sent<rdzv::Stopped>().size() == 1);
    CHECK(rig.sent<rdzv::Stopped>()[0].store.port == 4002);
}

TEST_CASE("who has only ended workers explains it to those who ask, and says nothing") {
    Rig rig;
    rig.become_running();
    rig.exit(0, 0);
    rig.exit(1, 0);
    rig.pass(Milliseconds(60000));
    CHECK(rig.said().empty());
    CHECK(rig.supervisor.explain() == "workers here have ended; waiting for those of other nodes");
}

TEST_CASE("beats are sent while accepted, and only where they are wanted") {
    Rig rig;
    rig.become_waiting(Milliseconds(200));
    // The lease was counted from the join: who waits for a slow answer first may beat too late.
    REQUIRE(rig.sent<rdzv::Beat>().size() == 1);
    CHECK(rig.sent<rdzv::Beat>()[0].sequence == 1);
    CHECK(rig.supervisor.next_deadline() == rig.now + Milliseconds(200));
    rig.pass(Milliseconds(199));
    CHECK_FALSE(rig.sends_anything());
    rig.pass(Milliseconds(1));
    REQUIRE(rig.sent<rdzv::Beat>().size() == 1);
    CHECK(rig.sent<rdzv::Beat>()[0].sequence == 2);
    rig.hear(rdzv::Acknowledge{2});
    CHECK(rig.effects.empty());
    rig.pass(Milliseconds(200));
    CHECK(rig.sent<rdzv::Beat>()[0].sequence == 3);
    rig.give(LinkDown{"reset"});
    rig.pass(Milliseconds(1000));
    CHECK_FALSE(rig.sends_anything());

    Rig local;
    local.become_waiting();
    CHECK(local.supervisor.next_deadline() == local.now + Limits{}.say_waiting_after);
}

TEST_CASE("an agent that never reached the rendezvous says so and gives up") {
    SupervisorOptions options = two_slot_options();
    options.connect_timeout = Milliseconds(60000);
    Rig rig(options);
    rig.give(Tick{});
    rig.give(LinkDown{"10.0.0.9:29400: connection refused"});
    CHECK(rig.said().empty());
    rig.pass(Milliseconds(2000));
    CHECK(rig.said() ==
          "cannot reach the rendezvous: 10.0.0.9:29400: connection refused; "
          "trying again; 2 s of 60 s (--rdzv-conf join_timeout)");
    rig.pass(Milliseconds(57999));
    CHECK_FALSE(rig.does<Exit>());
    rig.pass(Milliseconds(1));
    CHECK(rig.exit_code() == kExitRendezvousLost);
    CHECK(rig.said() == "no rendezvous within 60 s (10.0.0.9:29400: connection refused)");
}

TEST_CASE("a reason that trying again cannot help ends the agent at once") {
    Rig rig;
    rig.give(LinkDown{"the two sides hold different secrets", true});
    CHECK(rig.said() == "the two sides hold different secrets");
    CHECK(rig.exit_code() == kExitUsage);
}

TEST_CASE("workers go on without the rendezvous until its time is over") {
    SupervisorOptions options = two_slot_options();
    options.rendezvous_lost_timeout = Milliseconds(10000);
    Rig rig(options);
    rig.become_running();
    rig.give(LinkDown{"connection reset"});
    rig.pass(Milliseconds(9999));
    CHECK_FALSE(rig.does<SignalWorkers>());
    CHECK(rig.said() ==
          "cut off from the rendezvous: connection reset; workers go on, trying again; 9 s of 10 s "
          "(--rdzv-lost-timeout)");
    rig.give(LinkDown{"connection refused"});
    rig.pass(Milliseconds(1));
    CHECK(rig.does<SignalWorkers>());
    CHECK(rig.said().find("rendezvous lost") == 0);
    rig.exit(0, 143);
    rig.exit(1, 143);
    CHECK(rig.does<EmptyGeneration>());
    rig.give(Emptied{Generation(1)});
    CHECK(rig.exit_code() == kExitRendezvousLost);
}

TEST_CASE("a wait for a rendezvous that nobody has reached names it") {
    SupervisorOptions options = two_slot_options();
    options.endpoint = "head:29400";
    options.connect_timeout = Milliseconds(600000);
    Rig rig(options);
    rig.give(Tick{});
    rig.pass(Milliseconds(2000));
    CHECK(rig.said() ==
          "waiting for the rendezvous at head:29400; 2 s of 600 s (--rdzv-conf join_timeout)");
    rig.give(LinkUp{"10.0.0.1"});
    rig.give(StoreOpened{{"10.0.0.1", 4001}});
    rig.pass(Milliseconds(1000));
    rig.hear(rdzv::Accepted{.run_token = "t1"});
    CHECK(rig.said() == "reached the rendezvous after 3 s");
}

TEST_CASE("who said that it is cut off says when it is back, and nobody else does") {
    Rig rig;
    rig.become_running(0);
    const bool is_short = GENERATE(true, false);
    rig.give(LinkDown{"connection reset"});
    rig.pass(Milliseconds(is_short ? 1999 : 2000));
    CHECK(rig.said().empty() == is_short);
    rig.give(LinkUp{"10.0.0.1"});
    rig.hear(rdzv::Accepted{.run_token = "t1"});
    CHECK(rig.said() == (is_short ? "" : "connected to the rendezvous again after 2 s"));
    rig.give(LinkDown{"connection reset"});
    rig.give(LinkUp{"10.0.0.1"});
    rig.hear(rdzv::Accepted{.run_token = "t1"});
    CHECK(rig.said().empty());
}

TEST_CASE("a wait with a limit says how much of it is over, counted from when it began") {
    Rig rig;
    rig.become_waiting();
    rig.hear(rdzv::Waiting{.text = "waiting for 1 node more: 1 of 2 here (a)",
                           .waited = Milliseconds(9500),
                           .limit = Milliseconds(600000)});
    rig.pass(Milliseconds(2000));
    CHECK(rig.said() ==
          "waiting for 1 node more: 1 of 2 here (a); 11 s of 600 s (--rdzv-conf join_timeout)");
    rig.pass(Milliseconds(5000));
    CHECK(rig.said() ==
          "waiting for 1 node more: 1 of 2 here (a); 16 s of 600 s (--rdzv-conf join_timeout)");
    CHECK(rig.supervisor.explain() == "waiting for 1 node more: 1 of 2 here (a)");
}

TEST_CASE("a wait whose end is known is explained once, with the time that is left") {
    const std::string text =
        "generation 1 runs on 2 nodes; it will be drained and grown to take more in";
    Rig rig;
    rig.become_waiting();
    rig.hear(rdzv::Waiting{.text = text, .over_in = Milliseconds(25500)});
    rig.pass(Milliseconds(2000));
    CHECK(rig.said() == text + "; 24 s left");
    for (int i = 0; i < 28; ++i) {
        rig.pass(Milliseconds(1000));
        CHECK(rig.said().empty());
    }
    rig.pass(Milliseconds(500));
    CHECK(rig.said() == text);  // it should have come 5 s ago
    rig.hear(rdzv::Waiting{.text = "waiting for 1 node more"});
    rig.pass(Milliseconds(2000));
    CHECK(rig.said() == "waiting for 1 node more");
}

TEST_CASE("a wait is explained after two seconds, on change and every five") {
    Rig rig;
    rig.become_waiting();
    rig.hear(rdzv::Waiting{"1 of 2 nodes here"});
    CHECK(rig.said().empty());
    CHECK(rig.supervisor.explain() == "1 of 2 nodes here");
    rig.pass(Milliseconds(2000));
    CHECK(rig.said() == "1 of 2 nodes here");
    rig.pass(Milliseconds(1000));
    rig.hear(rdzv::Waiting{"2 of 3 nodes here"});
    CHECK(rig.said().empty());
    rig.pass(Milliseconds(1000));
    CHECK(rig.said() == "2 of 3 nodes here");
    rig.pass(Milliseconds(5000));
    CHECK(rig.said() == "2 of 3 nodes here");
    rig.hear(Rig::row(1, 1));
    rig.pass(Milliseconds(60000));
    CHECK(rig.said().empty());
}

TEST_CASE("no message is sent before the join was accepted") {
    Rig rig;
    rig.become_running();
    rig.give(LinkDown{"reset"});
    rig.give(LinkUp{"10.0.0.1"});
    rig.exit(0, 0);
    rig.exit(1, 3);
    rig.hear(Rig::stop());
    rig.give(Emptied{Generation(1)});
    CHECK_FALSE(rig.sends_anything());
    rig.hear(rdzv::Accepted{.run_token = "t1"});
    CHECK(rig.sent<rdzv::WorkerFailed>().size() == 1);
    CHECK(rig.sent<rdzv::Stopped>().size() == 1);
}

}  // namespace ddprun::agent
