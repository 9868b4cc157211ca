// Goal: after any death no process survives. Method: every process below an agent holds the write
// end of one pipe, so that its end of file is the kernel's word that all of them are gone. Nothing
// sleeps; the kill comes once a given number of the processes have reported their start.

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <vector>

#include <fmt/format.h>

#include "agent/process/children.hpp"
#include "base/os/start_program.hpp"
#include "tests/process/keeper_fixture.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/debugger.hpp"

namespace ddprun::agent {
namespace {

constexpr std::size_t kWorkers = 4;

int wait_for(int pid) {
    int status = 0;
    REQUIRE(waitpid(pid, &status, __WALL) == pid);
    return status;
}

std::vector<int> children_now() {
    const std::optional<std::vector<int>> children = own_children();
    REQUIRE(children);
    return *children;
}

}  // namespace

TEST_CASE("an agent that is killed leaves nobody behind") {
    // A fixture of an earlier test has made this process a subreaper; an agent's parent is none.
    REQUIRE(prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) == 0);
    for (int cycle = 0; cycle < cycles(); ++cycle) {
        const TestAgent agent(kWorkers);
        // In every fourth cycle when all have started, else while they are still being started.
        const std::size_t all = kWorkers * kFamily;
        const std::size_t seen = cycle % 4 == 0 ? all : static_cast<std::size_t>(cycle) % all;
        CHECK(read_exactly(agent.pipe.read_end, seen).size() == seen);
        agent.kill_alone();
        (void)read_to_end(agent.pipe.read_end);
    }
}

TEST_CASE("a keeper that is killed leaves nobody behind and is replaced") {
    KeeperFixture fixture;
    for (int cycle = 0; cycle < cycles(); ++cycle) {
        fixture.pipe = TestPipe();
        for (std::size_t rank = 0; rank < kWorkers; ++rank) {
            fixture.start(static_cast<int>(rank), {"family"});
        }
        fixture.run_until([&] { return fixture.started.size() == kWorkers; });
        const std::size_t all = kWorkers * kFamily;
        const std::size_t seen = cycle % 4 == 0 ? all : static_cast<std::size_t>(cycle) % all;
        CHECK(fixture.said(seen).size() == seen);
        const int before = fixture.keeper->keeper_pid();
        REQUIRE(kill(before, SIGKILL) == 0);
        fixture.run_until([&] { return fixture.lost == cycle + 1; });
        REQUIRE(fixture.keeper->keeper_pid() != 0);
        CHECK(fixture.keeper->keeper_pid() != before);
        // Without turning the loop: they are gone by the time on_lost comes.
        fixture.pipe.write_end.reset();
        (void)read_to_end(fixture.pipe.read_end);
        fixture.started.clear();
        fixture.ended.clear();
        fixture.order.clear();
    }
    fixture.pipe = TestPipe();
    CHECK(fixture.run({"exit", "7"}).exit_code == 7);
    CHECK(fixture.not_emptied.empty());
}

TEST_CASE("a sweep leaves alone what is not the keeper's") {
    TestPipe lifeline;
    ProgramSpec spec;
    spec.command = {kWorkerProgram, "wait"};
    spec.fds = {FdMapping{.from = lifeline.write_end.get(), .to = STDOUT_FILENO}};
    const Result<StartedProgram> earlier = start_program(spec);
    REQUIRE(!earlier.has_error());
    {
        KeeperFixture fixture;
        const Result<StartedProgram> later = start_program(spec);
        REQUIRE(!later.has_error());
        fixture.keeper->exclude(later->pid);
        CHECK(read_exactly(lifeline.read_end, 2) == "rr");
        REQUIRE(kill(fixture.keeper->keeper_pid(), SIGKILL) == 0);
        fixture.run_until([&] { return fixture.lost == 1; });
        for (const int pid : {earlier->pid, later->pid}) {
            int status = 0;
            CHECK(waitpid(pid, &status, WNOHANG) == 0);
        }
        REQUIRE(kill(later->pid, SIGKILL) == 0);
        CHECK(wait_for(later->pid) == SIGKILL);
    }
    REQUIRE(kill(earlier->pid, SIGKILL) == 0);
    CHECK(wait_for(earlier->pid) == SIGKILL);
}

TEST_CASE("nobody is forgotten or proven gone when no descriptor is left to look with") {
    const std::vector<int> before = children_now();
    Containment containment({before.begin(), before.end()}, std::nullopt, std::nullopt);
    ProgramSpec spec;
    spec.command = {"/bin/sleep", "600"};
    std::vector<int> pids;
    for (int i = 0; i < 3; ++i) {
        const Result<StartedProgram> started = start_program(spec);
        REQUIRE(!started.has_error());
        pids.push_back(started->pid);
    }
    containment.exclude(pids[0]);
    {
        const NoMoreFiles no_more;
        containment.exclude(pids[1]);
        CHECK_FALSE(containment.is_empty());
        CHECK_FALSE(containment.describe_rest().empty());
    }
    CHECK(containment.children() == std::set<int>{pids[2]});
    for (const int pid : pids) {
        REQUIRE(kill(pid, SIGKILL) == 0);
        CHECK(wait_for(pid) == SIGKILL);
    }
    CHECK(containment.is_empty());
}

TEST_CASE("without pidfd everything works as with it") {
    TestPipe pipe;
    TestPipe complaints;
    ProgramSpec spec;
    spec.command = {kAgentProgram, kKeeperProgram, kWorkerProgram, "no-pidfd"};
    spec.fds = {FdMapping{.from = pipe.write_end.get(), .to = STDOUT_FILENO},
                FdMapping{.from = complaints.write_end.get(), .to = STDERR_FILENO}};
    const Result<StartedProgram> agent = start_program(spec);
    REQUIRE(!agent.has_error());
    pipe.write_end.reset();
    complaints.write_end.reset();
    (void)read_to_end(pipe.read_end);
    const int status = wait_for(agent->pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
        WARN("LEFT OUT: this machine allows no seccomp filter");
        return;
    }
    if (wanted_containment() == ContainmentLevel::PidNamespace) {
        CHECK(WEXITSTATUS(status) == 1);
        CHECK(read_to_end(complaints.read_end) ==
              "containment C2 (pid-namespace) cannot be had: a PID namespace needs pidfd "
              "(Linux 5.3): Function not implemented");
        return;
    }
    CHECK(status == 0);
    // Once for each of the two keepers.
    CHECK(read_to_end(complaints.read_end).find("no pidfd on this machine") != std::string::npos);
}

TEST_CASE("an empty that died with its keeper can be asked again of the next one") {
    KeeperFixture fixture;
    fixture.start(0, {"family"});
    CHECK(fixture.said(kFamily).size() == kFamily);
    REQUIRE(kill(fixture.keeper->keeper_pid(), SIGKILL) == 0);
    fixture.keeper->empty_generation(Generation(1));
    fixture.run_until([&] { return fixture.lost == 1; });
    fixture.empty();
    CHECK(fixture.emptied == std::vector<std::uint64_t>{1});
}

TEST_CASE("a keeper that dies at once is not started again and again") {
    KeeperFixture fixture(SavedProcessState::capture(), Milliseconds(10000), "/bin/true");
    fixture.run_until([&] { return fixture.lost == 1; });
    CHECK(fixture.keeper->keeper_pid() == 0);
    fixture.start(0, {"exit", "0"});
    fixture.run_until([&] { return fixture.lost == 2; });
    fixture.empty();
    CHECK(fixture.order == std::vector<std::string>{"lost", "lost", "emptied"});
}

TEST_CASE("what cannot be removed is named after the time allowed, and waited for") {
    // A debugger holds the dead worker: no other process can reap it, so it is still there.
    test::Debugger debugger;
    KeeperFixture fixture(SavedProcessState::capture(), Milliseconds(20));
    fixture.start(0, {"wait"});
    fixture.run_until([&] { return fixture.started.contains(0); });
    const int worker = fixture.started[0];
    const int keeper = fixture.keeper->keeper_pid();
    bool is_seen_from_here = false;
    if (!debugger.seize(worker)) {
        WARN("LEFT OUT: this machine allows no ptrace");
        return;
    }
    SECTION("by the keeper") {
        fixture.keeper->empty_generation(Generation(1));
        fixture.run_until([&] { return !fixture.not_emptied.empty(); });
        CHECK(fixture.emptied.empty());
        debugger.let_go();
        fixture.run_until([&] { return !fixture.emptied.empty(); });
        CHECK(fixture.ended[0].signal == SIGKILL);
    }
    SECTION("by the agent, which has no other keeper until then") {
        is_seen_from_here = true;
        REQUIRE(kill(keeper, SIGKILL) == 0);
        fixture.run_until([&] { return !fixture.not_emptied.empty(); });
        CHECK(fixture.keeper->keeper_pid() == 0);
        // No keeper that knows nothing of the generation says that it is empty.
        fixture.keeper->empty_generation(Generation(1));
        fixture.start(0, {"exit", "0"}, {}, Generation(2));
        fixture.io.restart();
        fixture.io.poll();
        CHECK(fixture.order == std::vector<std::string>{"started 0", "not emptied"});
        debugger.let_go();
        fixture.run_until([&] { return fixture.lost == 1; });
        CHECK(fixture.keeper->keeper_pid() != 0);
        fixture.empty();
        CHECK(fixture.order ==
              std::vector<std::string>{"started 0", "not emptied", "lost", "emptied"});
    }
    SECTION("by the keeper, but not after its agent has stopped") {
        fixture.keeper->empty_generation(Generation(1));
        fixture.run_until([&] { return !fixture.not_emptied.empty(); });
        if (wanted_containment() == ContainmentLevel::PidNamespace) {
            debugger.let_go();  // The kernel ends the first process after all others.
        }
        // The fixture's end waits until the keeper has ended.
    }
    SECTION("but not by an agent that stops") {
        is_seen_from_here = true;
        REQUIRE(kill(keeper, SIGKILL) == 0);
        fixture.run_until([&] { return !fixture.not_emptied.empty(); });
        // The fixture's end waits until the handle has stopped.
    }
    REQUIRE(fixture.not_emptied.size() == 1);
    // The keeper of a PID namespace ends last of all in there, and is what the agent sees.
    const bool is_namespace = wanted_containment() == ContainmentLevel::PidNamespace;
    const int pid = is_seen_from_here && is_namespace ? keeper : worker;
    CHECK(fixture.not_emptied[0].find(fmt::format("process {} (", pid)) == 0);
    CHECK(fixture.not_emptied[0].find("20 ms after SIGKILL") != std::string::npos);
}

TEST_CASE("what helpers leave to the agent is reaped when it ends, and no helper itself") {
    KeeperFixture fixture;
    std::vector<int> known = children_now();  // Children of earlier tests do not count.
    TestPipe lifeline;
    ProgramSpec spec;
    spec.command = {"/bin/sh", "-c", "cat <&0 & exit 7"};
    spec.fds = {FdMapping{.from = lifeline.read_end.get(), .to = STDIN_FILENO}};
    const Result<StartedProgram> leaver = start_program(spec);
    REQUIRE(!leaver.has_error());
    fixture.keeper->exclude(leaver->pid);
    CHECK(WEXITSTATUS(wait_for(leaver->pid)) == 7);
    spec.command = {"/bin/sh", "-c", "exit 8"};
    const Result<StartedProgram> helper = start_program(spec);
    REQUIRE(!helper.has_error());
    fixture.keeper->exclude(helper->pid);
    known.push_back(helper->pid);
    const auto has_adopted = [&known] {
        const std::vector<int> children = children_now();
        return std::any_of(children.begin(), children.end(), [&known](int child) {
            return std::find(known.begin(), known.end(), child) == known.end();
        });
    };
    CHECK(has_adopted());
    lifeline.write_end.reset();
    fixture.run_until([&] { return !has_adopted(); });
    // A caller that waits for a helper still learns how it ended.
    CHECK(WEXITSTATUS(wait_for(helper->pid)) == 8);
    CHECK(fixture.run({"exit", "7"}).exit_code == 7);
}

TEST_CASE("a keeper whose agent closes the socket ends with all it holds") {
    TestPipe pipe;
    {
        KeeperFixture fixture;
        fixture.pipe = TestPipe();
        fixture.start(0, {"family"});
        CHECK(fixture.said(kFamily).size() == kFamily);
        pipe = std::move(fixture.pipe);
        fixture.pipe = TestPipe();
    }
    pipe.write_end.reset();
    CHECK(read_to_end(pipe.read_end).empty());
}

}  // namespace ddprun::agent
