// The user's command before the first workers, on one node.

#include <csignal>

#include "tests/support/catch.hpp"
#include "tests/unit/supervisor_fixture.hpp"

using namespace ddprun;
using namespace ddprun::agent;

namespace {

SupervisorOptions with_prepare(rdzv::Prepares prepares = rdzv::Prepares::Node) {
    SupervisorOptions options = two_slot_options();
    options.identity.prepares = prepares;
    return options;
}

void become_preparing(Rig& rig) {
    rig.become_waiting();
    rig.hear(rdzv::Prepare{});
}

/// Connects again, and returns the next join's word on the preparation.
rdzv::Prepares reconnect(Rig& rig) {
    rig.give(LinkUp{"10.0.0.1"});
    REQUIRE(rig.sent<rdzv::Join>().size() == 1);
    return rig.sent<rdzv::Join>()[0].prepares;
}

const std::vector<rdzv::Stopped> kPrepared = {{Generation(), {"10.0.0.1", 4001}}};

}  // namespace

TEST_CASE("a node says when it has prepared, and that nothing of the command is left") {
    Rig rig(with_prepare());
    become_preparing(rig);
    REQUIRE(rig.does<RunPrepare>());
    CHECK(rig.supervisor.explain() == "waiting for the prepare command");
    rig.hear(rdzv::Prepare{});
    CHECK(rig.effects.empty());
    rig.give(PrepareEnded{});
    CHECK(rig.effect<EmptyGeneration>()->generation == kPrepareGeneration);
    CHECK_FALSE(rig.sends_anything());
    rig.give(Emptied{kPrepareGeneration});
    CHECK(rig.sent<rdzv::Stopped>() == kPrepared);
    rig.hear(rdzv::Prepare{});
    CHECK(rig.sent<rdzv::Stopped>() == kPrepared);
    CHECK_FALSE(rig.does<RunPrepare>());
}

TEST_CASE("a connection that breaks does not end the command; the next join says what is left") {
    Rig rig(with_prepare());
    become_preparing(rig);
    rig.give(LinkDown{"reset"});
    const bool ends_meanwhile = GENERATE(false, true);
    if (ends_meanwhile) {
        rig.give(PrepareEnded{});
        rig.give(Emptied{kPrepareGeneration});
        CHECK_FALSE(rig.sends_anything());
    }
    CHECK(reconnect(rig) == (ends_meanwhile ? rdzv::Prepares::Nobody : rdzv::Prepares::Node));
}

TEST_CASE("a node that runs the job's command says so to whichever rendezvous it joins") {
    Rig rig(with_prepare(rdzv::Prepares::Job));
    become_preparing(rig);
    rig.give(LinkDown{"reset"});
    CHECK(reconnect(rig) == rdzv::Prepares::JobHere);
}

TEST_CASE("what ends between a join and its answer is told with the answer") {
    Rig rig(with_prepare(rdzv::Prepares::Job));
    become_preparing(rig);
    rig.give(LinkDown{"reset"});
    CHECK(reconnect(rig) == rdzv::Prepares::JobHere);
    rig.give(PrepareEnded{});
    rig.give(Emptied{kPrepareGeneration});
    CHECK(rig.sent<rdzv::Stopped>().empty());
    rig.hear(rdzv::Accepted{.run_token = "t1", .lease = {}, .beat_interval = {}});
    // Another node may prepare for the job meanwhile: then no message asks this one again.
    REQUIRE(rig.sent<rdzv::Stopped>().size() == 1);
    CHECK(rig.sent<rdzv::Stopped>()[0].generation == Generation());
}

TEST_CASE("a command that fails ends this node with its exit code, and the job is told why") {
    Rig rig(with_prepare());
    become_preparing(rig);
    rig.give(PrepareEnded{"exited with code 3", 3});
    CHECK(rig.exit_code() == -1);
    rig.give(Emptied{kPrepareGeneration});
    CHECK(rig.said() == "the prepare command exited with code 3: no workers are started");
    REQUIRE(rig.sent<rdzv::Goodbye>().size() == 1);
    CHECK(rig.sent<rdzv::Goodbye>()[0] ==
          rdzv::Goodbye{.unprepared = "exited with code 3", .exit_code = 3});
    CHECK(rig.exit_code() == 3);
}

TEST_CASE("a node that goes has the command end first: asked, and after the grace killed") {
    Rig rig(with_prepare());
    become_preparing(rig);
    rig.give(Signalled{SIGTERM});
    CHECK(rig.sent<rdzv::Leave>().size() == 1);
    rig.hear(rdzv::Released{});
    REQUIRE(rig.does<SignalWorkers>());
    CHECK(rig.effect<SignalWorkers>()->generation == kPrepareGeneration);
    CHECK(rig.exit_code() == -1);
    SECTION("it ends") {
        rig.give(PrepareEnded{"was killed by SIGTERM", 143});
    }
    SECTION("it does not") {
        rig.pass(with_prepare().identity.settings.failure_grace - Milliseconds(1));
        CHECK_FALSE(rig.does<EmptyGeneration>());
        CHECK(rig.supervisor.next_deadline() == rig.now + Milliseconds(1));
        rig.pass(Milliseconds(1));
    }
    SECTION("nobody waits that long") {
        rig.pass(Milliseconds(1500));
        rig.give(Signalled{SIGINT});
    }
    CHECK(rig.does<EmptyGeneration>());
    rig.give(Emptied{kPrepareGeneration});
    CHECK(rig.exit_code() == 143);
    CHECK(rig.sent<rdzv::Goodbye>() == std::vector<rdzv::Goodbye>{{}});
}

TEST_CASE("a keeper that dies takes the command with it") {
    Rig rig(with_prepare());
    become_preparing(rig);
    rig.give(KeeperLost{});
    CHECK(rig.exit_code() == 137);
}
