// Goal: at the lowest level, where nothing is adopted, all that stayed in a worker's session dies
// with agent or keeper; what has left it may live on. Method: as in keeper_death_test.cpp. These
// run at that level only.

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>
#include <fmt/format.h>

#include "agent/process/containment.hpp"
#include "agent/process/sweep.hpp"
#include "base/os/start_program.hpp"
#include "tests/process/keeper_fixture.hpp"
#include "tests/support/catch.hpp"

namespace ddprun::agent {
namespace {

constexpr std::size_t kWorkers = 4;
constexpr std::size_t kCouple = 2;

bool is_wanted() {
    if (wanted_containment() != ContainmentLevel::Session) {
        return false;
    }
    // A test's process is no subreaper there either.
    REQUIRE(prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) == 0);
    return true;
}

}  // namespace

TEST_CASE("what stayed in the workers' sessions dies with the agent", "[session]") {
    if (!is_wanted()) {
        return;
    }
    for (int cycle = 0; cycle < cycles(); ++cycle) {
        const TestAgent agent(kWorkers, "couple");
        const std::size_t all = kWorkers * kCouple;
        const std::size_t seen = cycle % 4 == 0 ? all : static_cast<std::size_t>(cycle) % all;
        CHECK(read_exactly(agent.pipe.read_end, seen).size() == seen);
        agent.kill_alone();
        (void)read_to_end(agent.pipe.read_end);
    }
}

TEST_CASE("what stayed in the workers' sessions dies with the keeper", "[session]") {
    if (!is_wanted()) {
        return;
    }
    KeeperFixture fixture;
    CHECK(fixture.keeper->containment() == ContainmentLevel::Session);
    for (int cycle = 0; cycle < cycles(); ++cycle) {
        fixture.pipe = TestPipe();
        for (std::size_t rank = 0; rank < kWorkers; ++rank) {
            fixture.start(static_cast<int>(rank), {"couple"});
        }
        fixture.run_until([&] { return fixture.started.size() == kWorkers; });
        const std::size_t all = kWorkers * kCouple;
        const std::size_t seen = cycle % 4 == 0 ? all : static_cast<std::size_t>(cycle) % all;
        CHECK(fixture.said(seen).size() == seen);
        REQUIRE(kill(fixture.keeper->keeper_pid(), SIGKILL) == 0);
        fixture.run_until([&] { return fixture.lost == cycle + 1; });
        fixture.pipe.write_end.reset();
        (void)read_to_end(fixture.pipe.read_end);
        fixture.started.clear();
    }
}

TEST_CASE("nothing but what has left its session outlives the agent at the lowest level",
          "[session]") {
    if (!is_wanted()) {
        return;
    }
    const TestAgent agent(1, "escape");
    std::string text;
    while (std::count(text.begin(), text.end(), 'r') < 2 || text.find('\n') == std::string::npos) {
        const std::string next = read_exactly(agent.pipe.read_end, 1);
        REQUIRE(next.size() == 1);
        text += next;
    }
    text.erase(std::remove(text.begin(), text.end(), 'r'), text.end());
    const UniqueFd escaped = open_pidfd(std::atoi(text.c_str()));
    REQUIRE(escaped.is_open());
    agent.kill_alone();
    (void)syscall(SYS_pidfd_send_signal, escaped.get(), SIGKILL, nullptr, 0);
    CHECK(read_to_end(agent.pipe.read_end).empty());
}

TEST_CASE("a sweep waits for a process that it neither owns nor kills", "[session]") {
    if (!is_wanted()) {
        return;
    }
    TestPipe pipe;
    ProgramSpec spec;
    spec.command = {kWorkerProgram, "wait"};
    spec.fds = {FdMapping{.from = pipe.write_end.get(), .to = STDOUT_FILENO}};
    const Result<StartedProgram> other = start_program(spec);
    REQUIRE(!other.has_error());
    boost::asio::io_context io(1);
    Containment containment({other->pid}, std::nullopt, ContainmentLevel::Session);
    std::string stuck;
    bool is_empty = false;
    Sweep sweep(io, containment,
                {.reap = [] {},
                 .on_empty = [&is_empty] { is_empty = true; },
                 .on_stuck =
                     [&](const std::string& rest) {
                         stuck = rest;
                         REQUIRE(kill(other->pid, SIGKILL) == 0);
                     }});
    sweep.await_other(other->pid);
    sweep.begin(Milliseconds(1));
    CHECK_FALSE(is_empty);
    io.run();
    CHECK(is_empty);
    CHECK(stuck.find(fmt::format("process {} (", other->pid)) == 0);
    int status = 0;
    CHECK(waitpid(other->pid, &status, 0) == other->pid);
}

}  // namespace ddprun::agent
