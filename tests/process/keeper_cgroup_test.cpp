// Goal: with a cgroup nobody survives even where agent and keeper die in the same instant. Method:
// as in keeper_death_test.cpp.

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdlib>

#include "agent/process/cgroup.hpp"
#include "base/os/start_program.hpp"
#include "tests/process/keeper_fixture.hpp"
#include "tests/support/catch.hpp"

namespace ddprun::agent {
namespace {

constexpr Milliseconds kPatience{10000};

bool has_cgroup() {
    if (!allows_cgroup(wanted_containment())) {
        WARN("LEFT OUT: this run is one without a cgroup");
        return false;
    }
    Result<Cgroup> made = Cgroup::make();
    if (made.has_error()) {
        WARN("LEFT OUT: no cgroup here: " << made.error().what);
        return false;
    }
    made->remove();
    return true;
}

}  // namespace

TEST_CASE("the next agent kills what was left by an agent that died together with its keeper") {
    REQUIRE(prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) == 0);
    if (!has_cgroup()) {
        return;
    }
    for (int cycle = 0; cycle < cycles() / 10; ++cycle) {
        TestAgent agent(1);
        agent.read_keeper();
        CHECK(read_exactly(agent.pipe.read_end, kFamily).size() == kFamily);
        agent.kill_with_keeper();
        // It may be somebody else's start that finds them, or nobody was left: then nothing is
        // said.
        const std::string line = clear_stale_cgroups(kPatience);
        CHECK(read_to_end(agent.pipe.read_end).empty());
        CHECK(line.find("still there") == std::string::npos);
    }
}

TEST_CASE("the cgroup of an agent that lives is left alone by others") {
    if (!has_cgroup()) {
        return;
    }
    KeeperFixture fixture;
    CHECK(fixture.keeper->containment() == wanted_containment().value_or(ContainmentLevel::Cgroup));
    fixture.start(0, {"family"});
    CHECK(fixture.said(kFamily).size() == kFamily);
    (void)clear_stale_cgroups(kPatience);
    CHECK(fixture.ended.empty());
    fixture.empty();
    CHECK(fixture.emptied == std::vector<std::uint64_t>{1});
}

TEST_CASE("a cgroup in which all were killed lets the next generation live") {
    if (!has_cgroup()) {
        return;
    }
    KeeperFixture fixture;
    for (int generation = 0; generation < 3; ++generation) {
        fixture.start(0, {"family"});
        CHECK(fixture.said(kFamily).size() == kFamily);
        fixture.emptied.clear();
        fixture.empty();
        CHECK(fixture.ended[0].signal == SIGKILL);
        CHECK(fixture.run({"exit", "3"}).exit_code == 3);
        fixture.emptied.clear();
        fixture.empty();
    }
}

}  // namespace ddprun::agent
