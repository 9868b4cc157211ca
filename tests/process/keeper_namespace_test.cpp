// Goal: with a PID namespace no process survives any death, and every other process still knows the
// workers by their numbers outside. Method: as in keeper_death_test.cpp, whose tests run at this
// level too; these run at no other.

#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <sstream>

#include <fmt/format.h>

#include "agent/process/start_first_process.hpp"
#include "base/os/read_files.hpp"
#include "tests/process/keeper_fixture.hpp"
#include "tests/support/catch.hpp"

namespace ddprun::agent {
namespace {

constexpr std::size_t kWorkers = 4;

bool is_wanted() {
    return wanted_containment() == ContainmentLevel::PidNamespace;
}

/// "NSpid:" of a process: its numbers, the outermost first.
std::vector<int> numbers_of(int pid) {
    const std::string text = read_whole(fmt::format("/proc/{}/status", pid)).value_or("");
    const std::size_t at = text.find("\nNSpid:");
    REQUIRE(at != std::string::npos);
    std::istringstream words(text.substr(at + 7, text.find('\n', at + 1) - at - 7));
    std::vector<int> numbers;
    for (int number = 0; words >> number;) {
        numbers.push_back(number);
    }
    return numbers;
}

}  // namespace

TEST_CASE("in a PID namespace nobody survives an agent and a keeper that die in one instant") {
    if (!is_wanted()) {
        return;
    }
    REQUIRE(prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) == 0);
    for (int cycle = 0; cycle < cycles(); ++cycle) {
        TestAgent agent(kWorkers);
        agent.read_keeper();
        const std::size_t all = kWorkers * kFamily;
        const std::size_t seen = cycle % 4 == 0 ? all : static_cast<std::size_t>(cycle) % all;
        CHECK(read_exactly(agent.pipe.read_end, seen).size() == seen);
        agent.kill_with_keeper();
        (void)read_to_end(agent.pipe.read_end);
    }
}

TEST_CASE("in a PID namespace nobody survives an agent whose keeper cannot move") {
    if (!is_wanted()) {
        return;
    }
    REQUIRE(prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) == 0);
    TestAgent agent(kWorkers);
    agent.read_keeper();
    CHECK(read_exactly(agent.pipe.read_end, kWorkers * kFamily).size() == kWorkers * kFamily);
    REQUIRE(kill(agent.keeper_pid(), SIGSTOP) == 0);
    agent.kill_alone();
    CHECK(read_to_end(agent.pipe.read_end).empty());
}

TEST_CASE("a worker in a PID namespace finds itself in /proc, and others know its outer number") {
    if (!is_wanted()) {
        return;
    }
    KeeperFixture fixture;
    CHECK(fixture.keeper->containment() == ContainmentLevel::PidNamespace);
    std::istringstream words(fixture.output_of({"numbers"}));
    int own = 0;
    int in_proc = 0;
    int parent = 0;
    int seen = 0;
    words >> own >> in_proc >> parent >> seen;
    CHECK(own == in_proc);
    CHECK(parent == 1);
    CHECK(seen == 2);  // The keeper and itself.
    CHECK(fixture.ended[0].pid == fixture.started[0]);

    fixture.start(1, {"wait"});
    CHECK(fixture.said(1) == "r");
    fixture.run_until([&] { return fixture.started.contains(1); });
    const std::vector<int> numbers = numbers_of(fixture.started[1]);
    REQUIRE(numbers.size() >= 2);
    CHECK(numbers[numbers.size() - 2] == fixture.started[1]);
    CHECK(numbers_of(fixture.keeper->keeper_pid()).back() == 1);
    REQUIRE(kill(fixture.started[1], SIGTERM) == 0);
    fixture.run_until([&] { return fixture.ended.contains(1); });
    CHECK(fixture.ended[1].signal == SIGTERM);
    CHECK(fixture.ended[1].pid == fixture.started[1]);
}

TEST_CASE("workers cannot kill the keeper that is the first process of their namespace") {
    if (!is_wanted()) {
        return;
    }
    KeeperFixture fixture;
    fixture.keeper->start_worker(Generation(1), LocalRank(0),
                                 {"/bin/sh", "-c", "kill -9 1; exit 5"}, {}, fixture.pipe.writer(),
                                 fixture.pipe.writer());
    fixture.run_until([&] { return fixture.ended.contains(0); });
    CHECK(fixture.ended[0].exit_code == 5);
    CHECK(fixture.lost == 0);
}

TEST_CASE("a namespace can be tried without leaving anything") {
    if (!is_wanted()) {
        return;
    }
    const Result<void> tried = try_first_process();
    CHECK(tried.has_value());
}

}  // namespace ddprun::agent
