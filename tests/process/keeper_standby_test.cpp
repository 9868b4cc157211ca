// Standbys have a keeper of their own: what it does with them, and that the keeper of a generation,
// its proof and the sweep after its death know nothing of them.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <string>
#include <vector>

#include "tests/process/keeper_fixture.hpp"
#include "tests/support/catch.hpp"

namespace ddprun::agent {

namespace {

/// Starts a standby that exits with code 7 when no process has the other end of its socket;
/// returns that end.
UniqueFd start_standby(KeeperFixture& fixture, int slot) {
    std::array<int, 2> ends{};
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0);
    UniqueFd ours(ends[0]);
    const std::string script = R"(test "$DDPRUN_STANDBY" = 3 || exit 1; cat <&3; exit 7)";
    fixture.keeper->start_standby(LocalRank(slot), {"/bin/sh", "-c", script}, {},
                                  fixture.pipe.writer(), fixture.pipe.writer(), {},
                                  WorkerStdin::Nothing, UniqueFd(ends[1]));
    fixture.run_until([&] { return fixture.started.contains(slot); });
    return ours;
}

/// Starts a standby that is a family, whose pipe shows when all of them are gone.
void start_standby_family(KeeperFixture& fixture, int slot) {
    std::array<int, 2> ends{};
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0);
    const UniqueFd ours(ends[0]);
    fixture.keeper->start_standby(LocalRank(slot), {kWorkerProgram, "family"}, {},
                                  fixture.pipe.writer(), fixture.pipe.writer(), {},
                                  WorkerStdin::Nothing, UniqueFd(ends[1]));
}

bool is_alive(int pid) {
    return kill(pid, 0) == 0;
}

constexpr std::size_t kSlots = 2;

/// A generation's keeper and its standbys', each with families in all slots.
struct TwoKeepers {
    /// Returns when `seen` of the processes of each have reported their start.
    void start(Generation generation, std::size_t seen) {
        for (KeeperFixture* const each : {&workers, &standbys}) {
            each->pipe = TestPipe();
            each->started.clear();
            each->ended.clear();
            each->adopted.clear();
        }
        workers.keeper->exclude(standbys.keeper->keeper_pid());
        standbys.keeper->exclude(workers.keeper->keeper_pid());
        for (int slot = 0; slot < static_cast<int>(kSlots); ++slot) {
            workers.start(slot, {"family"}, {}, generation);
            start_standby_family(standbys, slot);
        }
        for (KeeperFixture* const each : {&workers, &standbys}) {
            each->run_until([&] { return each->started.size() == kSlots; });
            CHECK(each->said(seen).size() == seen);
        }
    }

    /// Waits for the kernel's word that no process is left that held the pipe.
    static void check_nobody_is_left(KeeperFixture& fixture) {
        fixture.pipe.write_end.reset();
        (void)read_to_end(fixture.pipe.read_end);
    }

    static void check_all_alive(KeeperFixture& fixture) {
        for (const auto& [slot, pid] : fixture.started) {
            CHECK(is_alive(pid));
        }
    }

    static void kill_keeper_of(KeeperFixture& fixture) {
        const int before = fixture.lost;
        REQUIRE(kill(fixture.keeper->keeper_pid(), SIGKILL) == 0);
        fixture.run_until([&] { return fixture.lost == before + 1; });
        check_nobody_is_left(fixture);
    }

    static void kill_first_of(KeeperFixture& fixture) {
        REQUIRE(kill(fixture.started[0], SIGKILL) == 0);
        fixture.run_until([&] { return fixture.ended.contains(0); });
    }

    static void empty(KeeperFixture& fixture, Generation generation) {
        const std::size_t before = fixture.emptied.size();
        fixture.keeper->empty_generation(generation);
        fixture.run_until([&] { return fixture.emptied.size() > before; });
        check_nobody_is_left(fixture);
    }

    KeeperFixture workers;
    KeeperFixture standbys;
};

std::vector<LocalRank> slot(int number) {
    return {LocalRank(number)};
}

}  // namespace

TEST_CASE("a standby is adopted as a worker of the generation that starts, which has a page") {
    KeeperFixture fixture;
    UniqueFd socket = start_standby(fixture, 0);
    UniqueFd page(memfd_create("page", MFD_CLOEXEC));
    REQUIRE(write(page.get(), "hello", 5) == 5);
    fixture.keeper->adopt(Generation(4), LocalRank(0), std::move(page));
    fixture.run_until([&] { return fixture.adopted.contains(0); });
    if (wanted_containment() != ContainmentLevel::PidNamespace) {
        const UniqueFd seen(open(fixture.adopted[0].c_str(), O_RDONLY | O_CLOEXEC));
        CHECK(read_to_end(seen) == "hello");
    }
    socket.reset();
    fixture.run_until([&] { return fixture.ended.contains(0); });
    CHECK(fixture.ended[0].exit_code == 7);
    fixture.keeper->empty_generation(Generation(4));
    fixture.run_until([&] { return fixture.emptied == std::vector<std::uint64_t>{4}; });
}

TEST_CASE(
    "a generation begins beside standbys, which its signals do not reach, and ends with all") {
    KeeperFixture fixture;
    const UniqueFd first = start_standby(fixture, 0);
    const UniqueFd second = start_standby(fixture, 1);
    fixture.keeper->adopt(Generation(4), LocalRank(0), {});
    fixture.run_until([&] { return fixture.adopted.contains(0); });
    CHECK(fixture.adopted[0].empty());
    fixture.start(2, {"wait"}, {}, Generation(4));
    fixture.run_until([&] { return fixture.started.contains(2); });
    // All three slots; the second is none of the generation's.
    fixture.keeper->signal_workers(Generation(4), {LocalRank(0), LocalRank(1), LocalRank(2)},
                                   SIGKILL);
    fixture.run_until([&] { return fixture.ended.size() == 2; });
    CHECK_FALSE(fixture.ended.contains(1));
    CHECK(is_alive(fixture.started[1]));
    fixture.keeper->empty_generation(Generation(4));
    fixture.run_until([&] { return fixture.emptied == std::vector<std::uint64_t>{4}; });
    CHECK(fixture.ended[1].signal == SIGKILL);
}

TEST_CASE("a standby that has died is not adopted, and is nobody's worker") {
    KeeperFixture fixture;
    const UniqueFd socket = start_standby(fixture, 0);
    fixture.keeper->signal_workers(kStandbyGeneration, slot(0), SIGKILL);
    fixture.run_until([&] { return fixture.ended.contains(0); });
    fixture.keeper->adopt(Generation(4), LocalRank(0), {});
    fixture.ended.clear();
    fixture.start(0, {"exit", "5"}, {}, Generation(4));
    fixture.run_until([&] { return fixture.ended.contains(0); });
    CHECK(fixture.adopted.empty());
    CHECK(fixture.ended[0].exit_code == 5);
}

TEST_CASE("no standby is started beside a generation") {
    KeeperFixture fixture;
    fixture.start(0, {"wait"});
    fixture.run_until([&] { return fixture.started.contains(0); });
    fixture.keeper->start_standby(LocalRank(1), {"/bin/true"}, {}, fixture.pipe.writer(),
                                  fixture.pipe.writer(), {}, WorkerStdin::Nothing,
                                  fixture.pipe.writer());
    fixture.run_until([&] { return fixture.ended.contains(1); });
    CHECK(fixture.ended[1].exec_errno == EBUSY);
}

TEST_CASE("the proof of a generation and the sweep of a dead keeper leave standbys alone") {
    KeeperFixture workers;
    KeeperFixture standbys;
    workers.keeper->exclude(standbys.keeper->keeper_pid());
    const UniqueFd socket = start_standby(standbys, 0);
    workers.start(0, {"family"});
    workers.run_until([&] { return workers.started.contains(0); });
    workers.empty();
    CHECK(is_alive(standbys.started[0]));

    workers.start(0, {"family"}, {}, Generation(2));
    CHECK(workers.said(kFamily).size() == kFamily);
    REQUIRE(kill(workers.keeper->keeper_pid(), SIGKILL) == 0);
    workers.run_until([&] { return workers.lost == 1; });
    CHECK(is_alive(standbys.started[0]));
    CHECK(standbys.lost == 0);

    // And the other way round, beside a generation that lives.
    standbys.keeper->exclude(workers.keeper->keeper_pid());
    workers.started.clear();
    workers.start(0, {"wait"}, {}, Generation(3));
    workers.run_until([&] { return workers.started.contains(0); });
    REQUIRE(kill(standbys.keeper->keeper_pid(), SIGKILL) == 0);
    standbys.run_until([&] { return standbys.lost == 1; });
    CHECK(is_alive(workers.started[0]));
}

TEST_CASE("whoever is killed beside standbys, nobody survives and nobody else dies") {
    TwoKeepers both;
    KeeperFixture& workers = both.workers;
    KeeperFixture& standbys = both.standbys;
    for (int cycle = 0; cycle < cycles(); ++cycle) {
        INFO("cycle " << cycle);
        const Generation generation(static_cast<std::uint64_t>(2 * cycle + 1));
        const Generation next(generation.value() + 1);
        both.start(generation, static_cast<std::size_t>(cycle) % (kSlots * kFamily + 1));
        switch (cycle % 4) {
            case 0:
                both.kill_keeper_of(workers);
                both.check_all_alive(standbys);
                both.empty(standbys, kStandbyGeneration);
                break;
            case 1:
                both.kill_keeper_of(standbys);
                both.check_all_alive(workers);
                both.empty(workers, generation);
                break;
            case 2:  // a worker; the standbys become the next generation, which ends, too
                both.kill_first_of(workers);
                both.empty(workers, generation);
                both.check_all_alive(standbys);
                standbys.keeper->adopt(next, LocalRank(0), {});
                standbys.keeper->adopt(next, LocalRank(1), {});
                standbys.run_until([&] { return standbys.adopted.size() == kSlots; });
                both.empty(standbys, next);
                break;
            default:  // a standby; the other one becomes a worker beside a cold one
                both.kill_first_of(standbys);
                both.check_all_alive(workers);
                both.empty(workers, generation);
                standbys.keeper->adopt(next, LocalRank(1), {});
                standbys.start(0, {"family"}, {}, next);
                standbys.run_until([&] { return standbys.adopted.contains(1); });
                both.empty(standbys, next);
                break;
        }
    }
    CHECK(workers.not_emptied.empty());
    CHECK(standbys.not_emptied.empty());
}

TEST_CASE("an agent that is killed leaves neither workers nor standbys behind") {
    REQUIRE(prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) == 0);
    for (int cycle = 0; cycle < cycles(); ++cycle) {
        const TestAgent agent(kSlots, "family", "standbys");
        const std::size_t all = 2 * kSlots * kFamily;
        const std::size_t seen = cycle % 4 == 0 ? all : static_cast<std::size_t>(cycle) % all;
        CHECK(read_exactly(agent.pipe.read_end, seen).size() == seen);
        agent.kill_alone();
        (void)read_to_end(agent.pipe.read_end);
    }
}

}  // namespace ddprun::agent
