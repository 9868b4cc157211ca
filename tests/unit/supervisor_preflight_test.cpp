// A node's own check before each generation.

#include "tests/support/catch.hpp"
#include "tests/unit/supervisor_fixture.hpp"
#include "worker_runtime/contract/exit_codes.hpp"

using namespace ddprun;
using namespace ddprun::agent;

namespace {

SupervisorOptions with_preflight() {
    SupervisorOptions options = two_slot_options();
    options.has_preflight_command = true;
    return options;
}

/// As member of generation 1, before the workers end.
void become_running(Rig& rig, int group_rank) {
    rig.give(LinkUp{"10.0.0.1"});
    rig.give(PreflightDone{});
    rig.give(StoreOpened{{"10.0.0.1", 4001}});
    rig.hear(rdzv::Accepted{
        .run_token = "t1", .lease = Milliseconds(0), .beat_interval = Milliseconds(0)});
    rig.hear(Rig::row(1, group_rank));
}

void become_empty(Rig& rig, int group_rank) {
    become_running(rig, group_rank);
    rig.hear(Rig::stop());
    rig.exit(0, 143);
    rig.exit(1, 143);
    rig.give(Emptied{Generation(1)});
}

}  // namespace

TEST_CASE("a node joins only once its preflight command has found it fit") {
    Rig rig(with_preflight());
    rig.give(LinkUp{"10.0.0.1"});
    CHECK(rig.does<RunPreflight>());
    CHECK_FALSE(rig.does<OpenStore>());
    CHECK(rig.supervisor.explain() == "waiting for the preflight command");
    rig.give(LinkDown{"reset"});
    rig.give(LinkUp{"10.0.0.1"});
    CHECK_FALSE(rig.does<RunPreflight>());
    rig.give(PreflightDone{});
    CHECK(rig.does<OpenStore>());
    CHECK_FALSE(rig.sends_anything());
    rig.give(StoreOpened{{"10.0.0.1", 4001}});
    CHECK(rig.sent<rdzv::Join>().size() == 1);
}

TEST_CASE("a node that is not fit at first says so instead of joining, and exits with 97") {
    Rig rig(with_preflight());
    rig.give(LinkUp{"10.0.0.1"});
    rig.give(PreflightDone{"exited with code 3"});
    const rdzv::Join& identity = with_preflight().identity;
    REQUIRE(rig.sent<rdzv::Unfit>().size() == 1);
    CHECK(rig.sent<rdzv::Unfit>()[0] == rdzv::Unfit{.job = identity.job,
                                                    .node = identity.node,
                                                    .process = identity.process,
                                                    .hostname = identity.hostname,
                                                    .why = "its preflight command exited with "
                                                           "code 3"});
    CHECK(rig.said() ==
          "the preflight command exited with code 3: this node is not fit and leaves the job");
    CHECK_FALSE(rig.does<OpenStore>());
    CHECK(rig.exit_code() == -1);
    CHECK(rig.supervisor.explain() == "telling the rendezvous that this node is not fit");
    SECTION("the rendezvous has heard it") {
        rig.hear(rdzv::Refused{.text = "node a is not fit", .exit_code = kExitUnfit});
        CHECK(rig.said().empty());
        CHECK_FALSE(rig.sends_anything());
    }
    SECTION("one that does not decide sends it on") {
        rig.give(LinkDown{"the daemon at b:1 leads"});
        CHECK(rig.exit_code() == -1);
        rig.give(LinkUp{"10.0.0.1"});
        CHECK(rig.sent<rdzv::Unfit>().size() == 1);
        CHECK(rig.sent<rdzv::Join>().empty());
        rig.hear(rdzv::Refused{});
    }
    SECTION("nobody answers") {
        rig.pass(Limits().connect_timeout - Milliseconds(1));
        CHECK(rig.exit_code() == -1);
        CHECK(rig.supervisor.next_deadline() == rig.now + Milliseconds(1));
        rig.pass(Milliseconds(1));
    }
    SECTION("nobody ever will") {
        rig.give(LinkDown{"another secret", true});
    }
    CHECK(rig.exit_code() == kExitUnfit);
    CHECK(rig.sent<rdzv::Goodbye>().empty());
}

TEST_CASE("a node that is not fit and has no connection waits for one before it goes") {
    Rig rig(with_preflight());
    rig.give(LinkUp{"10.0.0.1"});
    rig.give(LinkDown{"reset"});
    rig.give(PreflightDone{"exited with code 3"});
    CHECK_FALSE(rig.sends_anything());
    CHECK(rig.exit_code() == -1);
    rig.give(LinkUp{"10.0.0.1"});
    CHECK(rig.sent<rdzv::Unfit>().size() == 1);
}

TEST_CASE("each further generation is preceded by a check, whether or not the node had the store") {
    const int group_rank = GENERATE(0, 1);
    Rig rig(with_preflight());
    become_empty(rig, group_rank);
    CHECK(rig.does<RunPreflight>());
    CHECK(rig.sent<rdzv::Stopped>().empty());
    SECTION("fit: it says that it has stopped") {
        rig.give(PreflightDone{});
        if (group_rank == 0) {
            CHECK(rig.does<OpenStore>());
            rig.give(StoreOpened{{"10.0.0.1", 4002}});
        }
        CHECK(rig.sent<rdzv::Stopped>().size() == 1);
    }
    SECTION("not fit: it goes") {
        rig.give(PreflightDone{"took longer than 60 s"});
        CHECK(rig.sent<rdzv::Stopped>().empty());
        REQUIRE(rig.sent<rdzv::Goodbye>().size() == 1);
        CHECK(rig.sent<rdzv::Goodbye>()[0].unfit == "its preflight command took longer than 60 s");
        CHECK(rig.exit_code() == kExitUnfit);
    }
    SECTION("the connection breaks meanwhile: it joins when it is fit") {
        rig.give(LinkDown{"reset"});
        rig.give(LinkUp{"10.0.0.1"});
        CHECK_FALSE(rig.sends_anything());
        rig.give(PreflightDone{});
        if (group_rank == 0) {
            rig.give(StoreOpened{{"10.0.0.1", 4002}});
        }
        CHECK(rig.sent<rdzv::Join>().size() == 1);
    }
    SECTION("the connection breaks meanwhile: not fit it says so as the one that had joined") {
        rig.give(LinkDown{"reset"});
        rig.give(LinkUp{"10.0.0.1"});
        rig.give(PreflightDone{"exited with code 3"});
        REQUIRE(rig.sent<rdzv::Unfit>().size() == 1);
        CHECK(rig.sent<rdzv::Unfit>()[0].run_token == "t1");
        CHECK(rig.sent<rdzv::Goodbye>().empty());
    }
}

TEST_CASE("a node that ends while it is checked does not wait for the answer") {
    Rig rig(with_preflight());
    become_empty(rig, 1);
    rig.hear(rdzv::Verdict{.kind = rdzv::VerdictKind::Failed, .exit_code = 9});
    CHECK(rig.exit_code() == 9);
    rig.give(PreflightDone{"exited with code 3"});
    CHECK(rig.effects.empty());
}
