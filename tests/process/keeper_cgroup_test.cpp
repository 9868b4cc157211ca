// Goal: with a cgroup no process survives, even if agent and keeper die in the same instant.
// Method: as in keeper_death_test.cpp.

#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

#include "agent/process/cgroup.hpp"
#include "agent/process/children.hpp"
#include "agent/process/containment.hpp"
#include "agent/process/frame_channel.hpp"
#include "agent/process/keeper_protocol.hpp"
#include "agent/process/saved_process_state.hpp"
#include "agent/process/sweep.hpp"
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

/// The folder where cgroup v2 is mounted.
std::string cgroup_mount() {
    std::ifstream mounts("/proc/self/mounts");
    std::string device;
    std::string folder;
    std::string type;
    std::string rest;
    while (mounts >> device >> folder >> type && std::getline(mounts, rest)) {
        if (type == "cgroup2") {
            return folder;
        }
    }
    return {};
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
        // The start of another agent may find them first, or no process was left: then nothing is
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

TEST_CASE("a keeper that finds the cgroup of its agent removed says so, if anybody is there") {
    if (!has_cgroup()) {
        return;
    }
    Result<Cgroup> cgroup = Cgroup::make();
    REQUIRE(!cgroup.has_error());
    Result<std::pair<UniqueFd, UniqueFd>> sockets = FrameChannel::make_sockets();
    REQUIRE(!sockets.has_error());
    TestPipe complaints;
    ProgramSpec spec;
    spec.command = {kKeeperProgram, SavedProcessState::capture().to_text(), "10000", "cgroup"};
    spec.fds = {FdMapping{.from = complaints.write_end.get(), .to = STDERR_FILENO},
                FdMapping{.from = sockets->second.get(), .to = kKeeperSocket},
                FdMapping{.from = cgroup->folder(), .to = kKeeperCgroup}};
    cgroup->remove();
    int expected = 0;
    SECTION("its agent has ended, and the next one has cleared the cgroup") {
        sockets->first.reset();
    }
    SECTION("its agent lives") {
        expected = 125;
    }
    const Result<StartedProgram> keeper = start_program(spec);
    REQUIRE(!keeper.has_error());
    complaints.write_end.reset();
    const std::string said = read_to_end(complaints.read_end);
    CHECK(said == (expected == 0 ? "" : "ddprun-keeper: the cgroup of its agent was removed\n"));
    int status = 0;
    REQUIRE(waitpid(keeper->pid, &status, 0) == keeper->pid);
    CHECK(WEXITSTATUS(status) == expected);
}

TEST_CASE("a sweep can begin though no descriptor is left") {
    if (!has_cgroup()) {
        return;
    }
    Result<Cgroup> cgroup = Cgroup::make();
    REQUIRE(cgroup.has_value());
    boost::asio::io_context io(1);
    // The loop has its own descriptors.
    const boost::asio::steady_timer timer(io);
    const boost::asio::posix::stream_descriptor descriptor(io);
    const std::optional<std::vector<int>> before = own_children();
    REQUIRE(before);
    Containment containment({before->begin(), before->end()}, std::move(*cgroup),
                            ContainmentLevel::Cgroup);
    rlimit files{};
    REQUIRE(getrlimit(RLIMIT_NOFILE, &files) == 0);
    const rlimit none{0, files.rlim_max};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
    bool is_over = false;
    {
        Sweep sweep(io, containment,
                    {.reap = [] {},
                     .on_empty = [&] { is_over = true; },
                     .on_stuck = [&](const std::string& /*rest*/) { is_over = true; }});
        REQUIRE(setrlimit(RLIMIT_NOFILE, &files) == 0);
        sweep.begin(kPatience);
        while (!is_over && io.run_one_for(kPatience) != 0) {}
    }
    CHECK(is_over);
    containment.release();
}

TEST_CASE("of each cgroup that was left behind it is said that it was cleared") {
    // In a PID namespace no process outlives the keeper.
    if (!has_cgroup() || wanted_containment() == ContainmentLevel::PidNamespace) {
        return;
    }
    // In a cgroup of its own, where no other test's agent looks for what was left.
    const std::string mount = cgroup_mount();
    const std::string own = mount + "/test-" + std::to_string(getpid());
    if (mkdir(own.c_str(), 0755) != 0) {
        WARN("LEFT OUT: no cgroup can be made in " << mount);
        return;
    }
    std::ofstream(own + "/cgroup.procs") << getpid() << std::flush;
    REQUIRE(prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) == 0);
    std::string line;
    {
        TestAgent first(1);
        TestAgent second(1);
        for (TestAgent* agent : {&first, &second}) {
            agent->read_keeper();
            CHECK(read_exactly(agent->pipe.read_end, kFamily).size() == kFamily);
            agent->kill_with_keeper();
        }
        line = clear_stale_cgroups(kPatience);
    }
    std::ofstream(mount + "/cgroup.procs") << getpid() << std::flush;
    CHECK(rmdir(own.c_str()) == 0);
    std::size_t told = 0;
    for (std::size_t at = line.find(own + "/ddprun-"); at != std::string::npos;
         at = line.find(own + "/ddprun-", at + 1)) {
        ++told;
    }
    INFO(line);
    CHECK(told == 2);
}

}  // namespace ddprun::agent
