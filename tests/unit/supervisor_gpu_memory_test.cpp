// GPU memory that is awaited between generations.

#include "tests/support/catch.hpp"
#include "tests/unit/supervisor_fixture.hpp"

using namespace ddprun;
using namespace ddprun::agent;

namespace {

SupervisorOptions with_gpus(bool has_preflight = false) {
    SupervisorOptions options = two_slot_options();
    options.awaits_gpu_memory = true;
    options.has_preflight_command = has_preflight;
    return options;
}

void become_empty(Rig& rig, int group_rank) {
    rig.become_killing(group_rank);
    rig.give(Emptied{Generation(1)});
}

}  // namespace

TEST_CASE("a node says that it has stopped only when its GPU memory is no longer awaited") {
    const int group_rank = GENERATE(0, 1);
    Rig rig(with_gpus());
    rig.become_waiting();
    CHECK_FALSE(rig.does<AwaitGpuMemory>());
    rig.hear(Rig::row(1, group_rank));
    rig.hear(Rig::stop());
    rig.exit(0, 143);
    rig.exit(1, 143);
    CHECK_FALSE(rig.does<AwaitGpuMemory>());
    rig.give(Emptied{Generation(1)});
    CHECK(rig.does<AwaitGpuMemory>());
    CHECK_FALSE(rig.does<OpenStore>());
    CHECK_FALSE(rig.sends_anything());
    CHECK(rig.supervisor.explain() == "waiting for the GPU memory of the last workers to be freed");
    rig.give(GpuMemoryAwaited{});
    if (group_rank == 0) {
        CHECK(rig.does<OpenStore>());
        rig.give(StoreOpened{{"10.0.0.1", 4002}});
    }
    CHECK(rig.sent<rdzv::Stopped>().size() == 1);
}

TEST_CASE("a node that awaits GPU memory answers no stop of what never started until then") {
    Rig rig(with_gpus());
    become_empty(rig, 1);
    rig.hear(Rig::stop(rdzv::StopCause::Failure, 2));
    CHECK_FALSE(rig.sends_anything());
    rig.give(GpuMemoryAwaited{});
    REQUIRE(rig.sent<rdzv::Stopped>().size() == 1);
    CHECK(rig.sent<rdzv::Stopped>()[0].generation == Generation(2));
}

TEST_CASE("a node's own check is run when its GPU memory is no longer awaited") {
    Rig rig(with_gpus(true));
    rig.give(LinkUp{"10.0.0.1"});
    CHECK(rig.does<RunPreflight>());
    rig.give(PreflightDone{});
    rig.give(StoreOpened{{"10.0.0.1", 4001}});
    rig.hear(rdzv::Accepted{
        .run_token = "t1", .lease = Milliseconds(0), .beat_interval = Milliseconds(0)});
    rig.hear(Rig::row(1, 1));
    rig.hear(Rig::stop());
    rig.exit(0, 143);
    rig.exit(1, 143);
    rig.give(Emptied{Generation(1)});
    CHECK_FALSE(rig.does<RunPreflight>());
    rig.give(GpuMemoryAwaited{});
    CHECK(rig.does<RunPreflight>());
    CHECK(rig.sent<rdzv::Stopped>().empty());
    rig.give(PreflightDone{});
    CHECK(rig.sent<rdzv::Stopped>().size() == 1);
}

TEST_CASE("a node whose connection breaks while GPU memory is awaited joins after that") {
    Rig rig(with_gpus());
    become_empty(rig, 1);
    rig.give(LinkDown{"reset"});
    rig.give(LinkUp{"10.0.0.1"});
    CHECK_FALSE(rig.sends_anything());
    CHECK_FALSE(rig.does<AwaitGpuMemory>());
    rig.give(GpuMemoryAwaited{});
    CHECK(rig.sent<rdzv::Join>().size() == 1);
}

TEST_CASE("a node that ends does not wait for GPU memory") {
    Rig rig(with_gpus());
    SECTION("it is told the verdict while it waits") {
        become_empty(rig, 1);
        rig.hear(rdzv::Verdict{.kind = rdzv::VerdictKind::Failed, .exit_code = 9});
        CHECK(rig.exit_code() == 9);
    }
    SECTION("it knew before its workers were gone") {
        rig.become_running();
        rig.hear(rdzv::Verdict{.kind = rdzv::VerdictKind::Failed, .exit_code = 9});
        rig.exit(0, 143);
        rig.exit(1, 143);
        rig.give(Emptied{Generation(1)});
        CHECK_FALSE(rig.does<AwaitGpuMemory>());
        CHECK(rig.exit_code() == 9);
    }
    rig.give(GpuMemoryAwaited{});
    CHECK(rig.effects.empty());
}
