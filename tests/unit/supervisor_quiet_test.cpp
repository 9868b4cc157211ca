// Signs of life of the workers, and what is done about a generation that shows none: QuietWatch,
// and cells of agent/supervise/README.md that concern hangs.

#include <chrono>
#include <csignal>
#include <string>

#include "agent/supervise/quiet_watch.hpp"
#include "agent/supervise/supervisor.hpp"
#include "tests/support/catch.hpp"
#include "tests/unit/supervisor_fixture.hpp"
#include "worker_runtime/contract/exit_codes.hpp"

namespace ddprun::agent {

namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

constexpr Milliseconds kTimeout{60000};

rdzv::JobSettings settings_with(Milliseconds timeout, bool is_learned = false) {
    rdzv::JobSettings settings;
    settings.hang_timeout = timeout;
    settings.learns_hang_timeout = is_learned;
    return settings;
}

/// A watch over two workers, which looks as soon as its next look is due.
struct Watched {
    explicit Watched(Milliseconds timeout = kTimeout, bool is_learned = false)
        : watch(settings_with(timeout, is_learned)) {
        seen.workers.resize(2);
        watch.begin(now);
    }

    /// One look, when it is due; true if the watch has changed its mind.
    bool look() {
        REQUIRE(watch.next_look().has_value());
        return look_after(*watch.next_look() - now);
    }
    bool look_after(Duration time) {
        now += time;
        REQUIRE(watch.take_due_look(now));
        const bool is_over = watch.take(now, seen, 2);
        const bool has_changed =
            watch.take_due_gpu_look(now) && watch.take_gpus(now, are_gpus_used);
        return is_over || has_changed;
    }
    /// Looks with nothing new until the watch calls the workers quiet: how long after `since`.
    Duration silence(Instant since) {
        while (!watch.is_quiet()) {
            look();
        }
        return now - since;
    }

    QuietWatch watch;
    SignsOfLife seen;
    bool are_gpus_used = false;
    Instant now = Instant(seconds(1000));
};

SupervisorOptions hang_options() {
    SupervisorOptions options = two_slot_options();
    options.identity.settings.hang_timeout = kTimeout;
    return options;
}

/// Runs generation 1 with --hang-timeout, and answers each look with `seen`.
struct HangRig : Rig {
    HangRig() : Rig(hang_options()) {
        seen.workers = {{.pid = 41, .progress = {}}, {.pid = 42, .progress = {}}};
        become_running();
    }

    void look() {
        pass(seconds(15));
        REQUIRE(effect<LookAtWorkers>().has_value());
        give(Looked{Generation(1), seen});
        if (does<LookAtGpus>() && gpus_answer) {
            give(GpusLooked{Generation(1), false});
        }
    }
    void become_quiet() {
        for (int i = 0; i < 5; ++i) {
            look();
        }
    }
    void become_hung() {
        become_quiet();
        hear(stop(rdzv::StopCause::Hang));
    }
    void reconnect() {
        give(LinkDown{"reset"});
        give(LinkUp{"10.0.0.1", {}});
        hear(rdzv::Accepted{.run_token = "t1"});
    }

    SignsOfLife seen;
    bool gpus_answer = true;
};

}  // namespace

// ------------------------------------------------------------------------------------ the watch

TEST_CASE("without a hang timeout nobody looks") {
    const Watched watched(Milliseconds(0));
    CHECK_FALSE(watched.watch.next_look().has_value());
}

TEST_CASE("workers are quiet once the timeout has passed since the last sign of life") {
    Watched watched;
    watched.look();  // they have started: the first sign
    const Instant alive_at = watched.now;
    CHECK(watched.silence(alive_at) == kTimeout);
    CHECK(watched.watch.quiet_for(watched.now) == kTimeout);
}

TEST_CASE("each sign of life alone keeps workers from being quiet, and ends it") {
    const std::string sign = GENERATE("output", "step", "CPU", "busy", "new process", "less CPU");
    CAPTURE(sign);
    Watched watched;
    watched.seen.cpu = seconds(100);
    watched.look();
    const auto show = [&] {
        watched.seen.is_busy = sign == "busy";
        watched.seen.output_bytes += sign == "output" ? 1 : 0;
        watched.seen.cpu += sign == "CPU" ? seconds(1) : seconds(0);
        watched.seen.cpu -= sign == "less CPU" ? milliseconds(1) : milliseconds(0);
        if (sign == "step") {
            watched.seen.workers[1].progress = watched.seen.workers[1].progress.value_or(0) + 1;
        } else if (sign == "new process") {
            watched.seen.workers[0].pid += 1;
        }
    };
    for (int i = 0; i < 20; ++i) {
        show();
        CHECK_FALSE(watched.look());
    }
    watched.seen.is_busy = false;
    watched.silence(watched.now);
    show();
    CHECK(watched.look());
    CHECK_FALSE(watched.watch.is_quiet());
}

TEST_CASE("what threads use that only wait is no sign of life") {
    Watched watched;
    watched.look();
    const Instant alive_at = watched.now;
    while (!watched.watch.is_quiet()) {
        watched.seen.cpu +=
            milliseconds(15000) * 2 / 100;  // one hundredth of a core for each of the two
        watched.look();
    }
    CHECK(watched.now - alive_at == kTimeout);
    watched.seen.cpu += milliseconds(15000) * 2 / 100 + milliseconds(1);
    CHECK(watched.look());
}

TEST_CASE("a look that comes late proves nothing: the agent was held up, its workers perhaps too") {
    Watched watched;
    watched.look();
    watched.look_after(minutes(10));
    CHECK_FALSE(watched.watch.is_quiet());
    CHECK(watched.silence(watched.now) == kTimeout);
}

TEST_CASE("a learned timeout is five minutes until the run shows longer quiet times") {
    Watched watched(Milliseconds(0), true);
    watched.look();
    CHECK(watched.silence(watched.now) == minutes(5));
}

TEST_CASE("a learned timeout is ten times the longest quiet time that was no hang") {
    Watched watched(Milliseconds(0), true);
    watched.look();
    const Instant alive_at = watched.now;
    for (int i = 0; i < 4; ++i) {
        watched.look();
    }
    watched.seen.output_bytes += 1;
    watched.look();
    const Duration quiet = watched.now - alive_at;
    CHECK(watched.watch.timeout() == 10 * quiet);
    CHECK(watched.silence(watched.now) == 10 * quiet);
    // Later generations know it, and shorter times change nothing.
    watched.watch.end();
    watched.watch.begin(watched.now);
    watched.look();
    watched.look();
    watched.seen.output_bytes += 1;
    watched.look();
    CHECK(watched.watch.timeout() == 10 * quiet);
}

TEST_CASE("GPUs are looked at only when nothing else shows life, and once at a time") {
    Watched watched;
    watched.look();
    const Instant alive_at = watched.now;
    while (watched.now - alive_at < kTimeout - milliseconds(15000)) {
        watched.look();
        CHECK_FALSE(watched.watch.take_due_gpu_look(watched.now));
    }
    watched.now = *watched.watch.next_look();
    REQUIRE(watched.watch.take_due_look(watched.now));
    CHECK_FALSE(watched.watch.take(watched.now, watched.seen, 2));
    CHECK(watched.watch.take_due_gpu_look(watched.now));
    CHECK_FALSE(watched.watch.take_due_gpu_look(watched.now));
    CHECK_FALSE(watched.watch.is_quiet());
    watched.now += seconds(5);
    CHECK(watched.watch.take_gpus(watched.now, false));
    CHECK(watched.watch.is_quiet());
    CHECK_FALSE(watched.watch.take_gpus(watched.now, true));  // the watch has not asked
    CHECK(watched.watch.quiet_for(watched.now) == kTimeout + seconds(5));
}

TEST_CASE("GPUs at work keep workers from being quiet, and end it; nothing is learned from them") {
    const bool is_learned = GENERATE(false, true);
    Watched watched(is_learned ? Milliseconds(0) : kTimeout, is_learned);
    const Duration timeout = watched.watch.timeout();
    watched.are_gpus_used = true;
    for (int i = 0; i < 100; ++i) {
        CHECK_FALSE(watched.look());
    }
    CHECK(watched.watch.timeout() == timeout);
    watched.are_gpus_used = false;
    watched.silence(watched.now);
    watched.are_gpus_used = true;
    CHECK(watched.look());
    CHECK_FALSE(watched.watch.is_quiet());
}

TEST_CASE("a sign of life that comes while GPUs are looked at counts") {
    Watched watched;
    watched.look();
    while (!watched.watch.take_due_gpu_look(watched.now)) {
        watched.now = *watched.watch.next_look();
        REQUIRE(watched.watch.take_due_look(watched.now));
        CHECK_FALSE(watched.watch.take(watched.now, watched.seen, 2));
    }
    CHECK_FALSE(watched.watch.show_life(watched.now));
    CHECK_FALSE(watched.watch.take_gpus(watched.now + seconds(1), false));
    CHECK_FALSE(watched.watch.is_quiet());
}

TEST_CASE("a new generation begins with a sign of life") {
    Watched watched;
    watched.silence(watched.now);
    watched.watch.begin(watched.now);
    CHECK_FALSE(watched.watch.is_quiet());
    watched.watch.end();
    CHECK_FALSE(watched.watch.next_look().has_value());
    CHECK_FALSE(watched.watch.take(watched.now, watched.seen, 2));
}

// ---------------------------------------------------------------------------- the table's cells

TEST_CASE("Run, Looked: that workers are quiet is told when it begins and when it is over") {
    HangRig rig;
    for (int i = 0; i < 4; ++i) {
        rig.look();
        CHECK_FALSE(rig.sends_anything());
    }
    rig.look();
    REQUIRE(rig.sent<rdzv::Quiet>().size() == 1);
    CHECK(rig.sent<rdzv::Quiet>()[0] == rdzv::Quiet{Generation(1), kTimeout});
    CHECK(rig.said().find("no sign of life for 60 s") != std::string::npos);
    rig.look();
    CHECK_FALSE(rig.sends_anything());
    rig.seen.output_bytes = 1;
    rig.look();
    REQUIRE(rig.sent<rdzv::Quiet>().size() == 1);
    CHECK(rig.sent<rdzv::Quiet>()[0] == rdzv::Quiet{Generation(1), Milliseconds(0)});
}

TEST_CASE("Run, Looked: nothing is told of another generation, or once nobody runs") {
    HangRig rig;
    for (int i = 0; i < 4; ++i) {
        rig.look();
    }
    rig.pass(seconds(15));
    rig.give(Looked{Generation(2), rig.seen});
    CHECK_FALSE(rig.sends_anything());
    rig.exit(0, 0);
    rig.exit(1, 0);
    rig.give(Looked{Generation(1), rig.seen});
    CHECK_FALSE(rig.sends_anything());
    rig.pass(seconds(60));
    CHECK_FALSE(rig.does<LookAtWorkers>());
}

TEST_CASE("Run, GpusLooked: workers are quiet when their GPUs are idle, and not before") {
    HangRig rig;
    rig.gpus_answer = false;
    rig.become_quiet();
    REQUIRE(rig.effect<LookAtGpus>().has_value());
    CHECK(rig.effect<LookAtGpus>()->quiet_for == kTimeout);
    CHECK_FALSE(rig.sends_anything());
    SECTION("idle") {
        rig.give(GpusLooked{Generation(2), false});
        CHECK_FALSE(rig.sends_anything());
        rig.give(GpusLooked{Generation(1), false});
        CHECK(rig.sent<rdzv::Quiet>().size() == 1);
        CHECK(rig.said().find("no output, CPU use, GPU use or progress") != std::string::npos);
        rig.look();
        CHECK(rig.does<LookAtGpus>());
        rig.give(GpusLooked{Generation(1), true});
        REQUIRE(rig.sent<rdzv::Quiet>().size() == 1);
        CHECK(rig.sent<rdzv::Quiet>()[0].quiet_for == Milliseconds(0));
    }
    SECTION("at work") {
        rig.give(GpusLooked{Generation(1), true});
        CHECK_FALSE(rig.sends_anything());
        rig.look();
        CHECK_FALSE(rig.does<LookAtGpus>());
    }
    SECTION("nobody runs any more") {
        rig.exit(0, 0);
        rig.exit(1, 0);
        rig.give(GpusLooked{Generation(1), false});
        CHECK_FALSE(rig.sends_anything());
    }
    SECTION("no group, Stop and Killing: nothing") {
        rig.hear(Rig::stop());
        rig.give(GpusLooked{Generation(1), false});
        CHECK(rig.effects.empty());
        rig.exit(0, 143);
        rig.exit(1, 143);
        rig.give(GpusLooked{Generation(1), false});
        CHECK(rig.effects.empty());
        rig.give(Emptied{Generation(1)});
        rig.give(GpusLooked{Generation(1), false});
        CHECK(rig.effects.empty());
    }
}

TEST_CASE("Run, Accepted: that workers are quiet is said again") {
    HangRig rig;
    rig.reconnect();
    CHECK(rig.sent<rdzv::Quiet>().empty());
    rig.become_quiet();
    rig.reconnect();
    REQUIRE(rig.sent<rdzv::Quiet>().size() == 1);
    CHECK(rig.sent<rdzv::Quiet>()[0].quiet_for == kTimeout);
}

TEST_CASE("Run, Stop for a hang: those that run have failed, their stacks are saved first") {
    HangRig rig;
    rig.seen.workers[1].progress = 7;
    rig.look();
    rig.exit(0, 0);
    rig.become_quiet();
    rig.hear(Rig::stop(rdzv::StopCause::Hang));
    const std::vector<rdzv::WorkerFailed> failed = rig.sent<rdzv::WorkerFailed>();
    REQUIRE(failed.size() == 1);
    CHECK(failed[0].local_rank == LocalRank(1));
    CHECK(failed[0].evidence.hung);
    CHECK(failed[0].evidence.pid == 42);
    CHECK(failed[0].evidence.progress == 7);
    CHECK(failed[0].evidence.quiet_for >= kTimeout);
    CHECK(failed[0].evidence.age == failed[0].evidence.quiet_for);
    CHECK(failed[0].evidence.log_dir == "/logs/llama_0/attempt_0/1");
    CHECK(failed[0].evidence.stacks == "/logs/llama_0/attempt_0/stacks");
    const auto save = rig.effect<SaveStacks>();
    REQUIRE(save.has_value());
    CHECK(save->folder == "/logs/llama_0/attempt_0/stacks");
    CHECK(save->base_rank == Rank(2));
    CHECK(save->workers == std::vector<LocalRank>{LocalRank(1)});
    CHECK_FALSE(rig.does<SignalWorkers>());
    CHECK(rig.said().find("because; the workers' stacks are saved in /logs") != std::string::npos);
    CHECK(rig.supervisor.explain().find("stacks of local rank 1") != std::string::npos);

    rig.give(StacksSaved{Generation(1)});
    const auto signal = rig.effect<SignalWorkers>();
    REQUIRE(signal.has_value());
    CHECK(signal->signal == SIGTERM);
    rig.pass(seconds(5));
    CHECK(rig.does<EmptyGeneration>());
}

TEST_CASE("without a log dir workers that hang are stopped and nothing is saved") {
    SupervisorOptions options = hang_options();
    options.log_dir.clear();
    Rig rig(options);
    rig.become_running();
    rig.hear(Rig::stop(rdzv::StopCause::Hang));
    CHECK(rig.said().find("without a log dir") != std::string::npos);
    REQUIRE(rig.effect<SaveStacks>().has_value());
    CHECK(rig.effect<SaveStacks>()->folder.empty());
}

TEST_CASE("Run, Stop for a hang: when all have ended there is nothing to save") {
    HangRig rig;
    rig.exit(0, 0);
    rig.exit(1, 0);
    rig.hear(Rig::stop(rdzv::StopCause::Hang));
    CHECK_FALSE(rig.does<SaveStacks>());
    CHECK(rig.does<EmptyGeneration>());
    CHECK(rig.sent<rdzv::WorkerFailed>().empty());
}

TEST_CASE("Hang: what the workers do from then on is no news") {
    HangRig rig;
    rig.become_hung();
    rig.exit(0, 0);
    rig.give(Looked{Generation(1), rig.seen});
    rig.hear(Rig::stop(rdzv::StopCause::Hang));
    CHECK_FALSE(rig.sends_anything());
    CHECK_FALSE(rig.does<SaveStacks>());
    rig.die(1, SIGTERM);
    CHECK_FALSE(rig.sends_anything());
    CHECK(rig.does<EmptyGeneration>());  // that was the last one
    rig.give(StacksSaved{Generation(1)});
    CHECK_FALSE(rig.does<SignalWorkers>());
}

TEST_CASE("Hang, Accepted: those that hung are said again, with the time since") {
    HangRig rig;
    rig.become_hung();
    rig.exit(0, 143);
    rig.pass(seconds(1));
    rig.reconnect();
    const std::vector<rdzv::WorkerFailed> failed = rig.sent<rdzv::WorkerFailed>();
    REQUIRE(failed.size() == 2);
    for (const rdzv::WorkerFailed& one : failed) {
        CHECK(one.evidence.hung);
        CHECK(one.evidence.quiet_for == kTimeout);
        CHECK(one.evidence.age == kTimeout + seconds(1));
    }
    CHECK(rig.sent<rdzv::Quiet>().empty());
}

TEST_CASE("Hang, another order: the workers are stopped without waiting for their stacks") {
    const auto cause = GENERATE(rdzv::StopCause::Failure, rdzv::StopCause::Fenced);
    HangRig rig;
    rig.become_hung();
    rig.hear(Rig::stop(cause));
    CHECK(rig.does<SignalWorkers>());
    rig.give(StacksSaved{Generation(1)});
    CHECK_FALSE(rig.does<SignalWorkers>());
}

TEST_CASE("nobody looks at workers of which one is being debugged") {
    SupervisorOptions options = hang_options();
    options.debugging = Debugging{.rank = Rank(2)};
    Rig rig(options);
    rig.become_running();
    for (int i = 0; i < 10; ++i) {
        rig.pass(seconds(60));
        CHECK_FALSE(rig.does<LookAtWorkers>());
        CHECK(rig.sent<rdzv::Quiet>().empty());
    }
}

TEST_CASE("who is debugged, and where, is said once") {
    const auto said = [](int rank, bool has_terminal) {
        SupervisorOptions options = two_slot_options();
        options.debugging =
            Debugging{.rank = Rank(rank), .is_asked = true, .has_terminal = has_terminal};
        Rig rig(options);
        rig.become_running();  // ranks 2 and 3 of 4
        return rig.said();
    };
    CHECK_THAT(said(3, true), Catch::Contains("rank 3 has this terminal: Ctrl-C goes to it"));
    CHECK_THAT(said(3, false), Catch::Contains("it is here, but stdin and stdout"));
    CHECK_THAT(said(0, true), Catch::Contains("it is on another node"));
    CHECK_THAT(said(4, true), Catch::Contains("there are ranks 0 to 3 only"));

    SupervisorOptions options = two_slot_options();
    options.debugging = Debugging{.rank = Rank(2), .is_asked = true, .has_terminal = true};
    Rig rig(options);
    rig.become_gone();
    rig.hear(Rig::row(2, 1));
    CHECK_THAT(rig.said(), !Catch::Contains("terminal"));
    const std::optional<StartWorkers> start = rig.effect<StartWorkers>();
    REQUIRE(start.has_value());
    CHECK_FALSE(start->workers[0].is_bystander);
    CHECK(start->workers[1].is_bystander);
    CHECK(start->workers[0].environment.back().first != "PYTHONBREAKPOINT");
    CHECK(start->workers[1].environment.back() ==
          std::pair<std::string, std::string>("PYTHONBREAKPOINT", "0"));
}

TEST_CASE("Hang, leaving without a link: the workers have the stop's grace, not the drain's") {
    HangRig rig;
    rig.become_hung();
    rig.give(Signalled{SIGTERM});
    rig.give(LinkDown{"reset"});
    CHECK(rig.does<SignalWorkers>());
    CHECK_FALSE(rig.does<AskWorkersToLeave>());
    rig.pass(Rig::stop(rdzv::StopCause::Hang).grace);
    CHECK(rig.does<EmptyGeneration>());
}

TEST_CASE("Hang, Verdict and a second Ctrl-C end the workers at once") {
    HangRig decided;
    decided.become_hung();
    decided.hear(rdzv::Verdict{.kind = rdzv::VerdictKind::Failed, .exit_code = 94, .text = "x"});
    CHECK(decided.does<SignalWorkers>());

    HangRig aborted;
    aborted.become_hung();
    aborted.give(Signalled{SIGINT});
    aborted.pass(seconds(1));
    aborted.give(Signalled{SIGINT});
    CHECK(aborted.does<EmptyGeneration>());
}

TEST_CASE("Hang, keeper lost: all of them are gone") {
    HangRig rig;
    rig.become_hung();
    rig.give(KeeperLost{});
    CHECK(rig.sent<rdzv::WorkerFailed>().empty());
    CHECK(rig.does<EmptyGeneration>());
    rig.give(Emptied{Generation(1)});
    rig.reconnect();
    CHECK(rig.sent<rdzv::WorkerFailed>().size() == 2);
}

TEST_CASE("Stop, Killing and Gone: nobody looks, and StacksSaved changes nothing") {
    HangRig rig;
    rig.become_hung();
    rig.give(StacksSaved{Generation(1)});
    rig.pass(seconds(1));
    CHECK_FALSE(rig.does<LookAtWorkers>());
    rig.exit(0, 143);
    rig.exit(1, 143);
    REQUIRE(rig.does<EmptyGeneration>());
    rig.hear(Rig::stop(rdzv::StopCause::Hang));
    rig.give(StacksSaved{Generation(1)});
    CHECK(rig.effects.empty());
    rig.give(Emptied{Generation(1)});
    rig.give(Looked{Generation(1), rig.seen});
    CHECK(rig.effects.empty());
    rig.give(StacksSaved{Generation(1)});
    CHECK(rig.effects.empty());
}

}  // namespace ddprun::agent
