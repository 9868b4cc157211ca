#include <fcntl.h>
#include <pty.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "agent/process/children.hpp"
#include "tests/process/keeper_fixture.hpp"
#include "tests/support/catch.hpp"

namespace ddprun::agent {
namespace {

std::size_t descriptors_of(int pid) {
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(fmt::format("/proc/{}/fd", pid))) {
        (void)entry;
        ++count;
    }
    return count;
}

std::vector<LocalRank> first_ranks(int count) {
    std::vector<LocalRank> ranks;
    for (int rank = 0; rank < count; ++rank) {
        ranks.emplace_back(rank);
    }
    return ranks;
}

/// Changes a signal's disposition or the mask of this process for one test.
class SignalStateGuard {
public:
    SignalStateGuard() : state_(SavedProcessState::capture()) {}
    ~SignalStateGuard() { (void)state_.restore(); }
    SignalStateGuard(const SignalStateGuard&) = delete;
    SignalStateGuard& operator=(const SignalStateGuard&) = delete;

private:
    SavedProcessState state_;
};

}  // namespace

TEST_CASE("all 256 exit codes are reported exactly") {
    KeeperFixture fixture;
    for (int code = 0; code < 256; ++code) {
        fixture.start(code, {"exit", std::to_string(code)});
    }
    fixture.run_until([&] { return fixture.ended.size() == 256; });
    for (const auto& [rank, end] : fixture.ended) {
        CHECK(end.exit_code == rank);
        CHECK(!end.signal);
        CHECK(!end.exec_errno);
        CHECK(end.pid == fixture.started[rank]);
    }
}

TEST_CASE("fatal signals are reported exactly") {
    KeeperFixture fixture;
    for (const int signal :
         {SIGHUP,  SIGINT,    SIGQUIT, SIGILL,  SIGTRAP,  SIGABRT, SIGBUS,  SIGFPE,
          SIGKILL, SIGUSR1,   SIGSEGV, SIGUSR2, SIGPIPE,  SIGALRM, SIGTERM, SIGXCPU,
          SIGXFSZ, SIGVTALRM, SIGPROF, SIGSYS,  SIGRTMIN, SIGRTMAX}) {
        const WorkerEnd end = fixture.run({"signal", std::to_string(signal)});
        CHECK(end.signal == signal);
        CHECK(!end.exit_code);
        CHECK(!end.core_dumped);
    }
}

TEST_CASE("a program that cannot be executed is reported with its errno and nothing else") {
    KeeperFixture fixture;
    const auto run = [&](const std::string& program) {
        fixture.ended.clear();
        fixture.keeper->start_worker(Generation(1), LocalRank(0), {program}, {},
                                     fixture.pipe.writer(), fixture.pipe.writer());
        fixture.run_until([&] { return !fixture.ended.empty(); });
        WorkerEnd expected;
        expected.exec_errno = fixture.ended[0].exec_errno;
        CHECK(fixture.ended[0] == expected);
        return fixture.ended[0].exec_errno;
    };
    char file[] = "/tmp/ddprun-keeper-test-XXXXXX";
    UniqueFd created(mkostemp(file, O_CLOEXEC));
    REQUIRE(created.is_open());

    CHECK(run("/nonexistent/program") == ENOENT);
    CHECK(run("no-such-program-in-the-search-path") == ENOENT);
    CHECK(run("/tmp") == EACCES);
    CHECK(run(file) == EACCES);
    CHECK(run(std::string(file) + "/below") == ENOTDIR);
    REQUIRE(fchmod(created.get(), 0700) == 0);
    REQUIRE(write(created.get(), "neither ELF nor script\n", 23) == 23);
    // Writable by us still: text file busy; closed, it is a file of no known format.
    CHECK(run(file) == ETXTBSY);
    created.reset();
    CHECK(run(file) == ENOEXEC);
    unlink(file);
    CHECK(fixture.started.empty());
    fixture.empty();
    CHECK(fixture.order.back() == "emptied");
}

TEST_CASE("a program is found in the search path of the worker's environment") {
    KeeperFixture fixture;
    const std::string folder = std::filesystem::path(kWorkerProgram).parent_path();
    fixture.pipe = TestPipe();
    fixture.keeper->start_worker(
        Generation(1), LocalRank(0), {"keeper_test_worker", "argument", "x y"},
        {{"PATH", "/nonexistent:" + folder}}, fixture.pipe.writer(), fixture.pipe.writer());
    fixture.run_until([&] { return fixture.ended.contains(0); });
    fixture.pipe.write_end.reset();
    CHECK(read_to_end(fixture.pipe.read_end) == "keeper_test_worker|x y");
}

TEST_CASE("a worker reads what it is to read: a terminal that controls it, or nothing") {
    KeeperFixture fixture;
    const auto says = [&fixture](const std::string& script, UniqueFd out, WorkerStdin from) {
        fixture.pipe = TestPipe();
        fixture.ended.clear();
        fixture.keeper->start_worker(Generation(1), LocalRank(0), {"/bin/sh", "-c", script}, {},
                                     std::move(out), fixture.pipe.writer(), {}, {}, from);
        fixture.run_until([&] { return fixture.ended.contains(0); });
        fixture.pipe.write_end.reset();
        return read_to_end(fixture.pipe.read_end);
    };
    int master = -1;
    int slave = -1;
    REQUIRE(openpty(&master, &slave, nullptr, nullptr, nullptr) == 0);
    const UniqueFd ours(master);
    REQUIRE(fcntl(master, F_SETFD, FD_CLOEXEC) == 0);
    const std::string asks = "test -t 0 && test -t 1 && : < /dev/tty && echo it controls >&2";
    CHECK(says(asks, UniqueFd(slave), WorkerStdin::Terminal) == "it controls\n");
    CHECK(says("cat >&2; echo end >&2", UniqueFd(open("/dev/null", O_WRONLY | O_CLOEXEC)),
               WorkerStdin::Nothing) == "end\n");
}

TEST_CASE("each worker tells what it imports to a pipe of its own, however many there are") {
    KeeperFixture fixture;
    std::array<TestPipe, 3> pipes;
    const TestPipe gate;  // The workers read it: all go on once the last one was started.
    const std::string gate_path = fmt::format("/proc/{}/fd/{}", getpid(), gate.read_end.get());
    for (int slot = 0; slot < 3; ++slot) {
        const std::string script = fmt::format(
            R"(read -r line < {}; echo "imports of {}" > "$DDPRUN_IMPORTS")", gate_path, slot);
        fixture.keeper->start_worker(Generation(1), LocalRank(slot), {"/bin/sh", "-c", script}, {},
                                     fixture.pipe.writer(), fixture.pipe.writer(), {}, {},
                                     WorkerStdin::Nothing,
                                     std::exchange(pipes.at(slot).write_end, {}));
    }
    fixture.run_until([&] { return fixture.started.size() == 3; });
    REQUIRE(write(gate.write_end.get(), "1\n2\n3\n", 6) == 6);
    fixture.run_until([&] { return fixture.ended.size() == 3; });
    for (int slot = 0; slot < 3; ++slot) {
        const std::string wanted = fmt::format("imports of {}\n", slot);
        CHECK(read_exactly(pipes.at(slot).read_end, wanted.size()) == wanted);
    }
}

TEST_CASE("arguments and environment of any bytes and size arrive") {
    KeeperFixture fixture;
    std::string bytes;
    for (int value = 1; value < 256; ++value) {
        bytes.push_back(static_cast<char>(value));
    }
    CHECK(fixture.output_of({"variable", "ANY"}, {{"ANY", bytes}}) == bytes);
    CHECK(fixture.output_of({"variable", "ANY"}, {{"ANY", "first"}, {"ANY", "last"}}) == "last");
    CHECK(fixture.output_of({"argument", bytes}) == kWorkerProgram + "|" + bytes);

    std::vector<std::pair<std::string, std::string>> large;
    for (int i = 0; i < 12; ++i) {
        large.emplace_back(fmt::format("LARGE_{}", i), std::string(100000, 'x'));
    }
    large.emplace_back("AFTER_THEM", "here");
    CHECK(fixture.output_of({"variable", "AFTER_THEM"}, large) == "here");
    CHECK(fixture.run({"argument", std::string(200000, 'x')}).exec_errno == E2BIG);
    CHECK(fixture.run({"argument", std::string(kKeeperFrameBytesMax, 'x')}).exec_errno == E2BIG);
}

TEST_CASE("a worker has the descriptors 0, 1 and 2 and no other") {
    // One that ddprun itself was started with and that is not close-on-exec.
    const UniqueFd inherited(dup(STDERR_FILENO));
    KeeperFixture fixture;
    fixture.start(1, {"wait"});
    fixture.start(2, {"wait"});
    CHECK(fixture.said(2) == "rr");
    CHECK(fixture.output_of({"descriptors"}) == "0 1 2 ");
    fixture.empty();
}

TEST_CASE("a worker starts with the signals and limits that ddprun was started with") {
    const SignalStateGuard guard;
    (void)std::signal(SIGHUP, SIG_IGN);
    (void)std::signal(SIGPIPE, SIG_IGN);
    (void)std::signal(SIGUSR2, SIG_DFL);
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR1);
    sigprocmask(SIG_SETMASK, &mask, nullptr);
    rlimit files{};
    REQUIRE(getrlimit(RLIMIT_NOFILE, &files) == 0);
    files.rlim_cur = 321;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &files) == 0);
    const SavedProcessState saved = SavedProcessState::capture();
    // An agent changes these for itself.
    sigemptyset(&mask);
    sigprocmask(SIG_SETMASK, &mask, nullptr);
    (void)std::signal(SIGUSR2, SIG_IGN);
    files.rlim_cur = 400;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &files) == 0);

    KeeperFixture fixture(saved);
    const std::string text = fixture.output_of({"state"});
    const auto seen = SavedProcessState::from_text(text.substr(0, text.find(' ')));
    REQUIRE(!seen.has_error());
    for (int signal = 1; signal <= 64; ++signal) {
        INFO("signal " << signal);
        CHECK(seen->ignores(signal) == (signal == SIGPIPE ? false : saved.ignores(signal)));
        CHECK(seen->blocks(signal) == saved.blocks(signal));
    }
    CHECK(seen->ignores(SIGHUP));
    CHECK(seen->blocks(SIGUSR1));
    CHECK(text.find(fmt::format(":{:x}:", 321)) != std::string::npos);
    CHECK(text.find("session=true death_signal=9") != std::string::npos);
}

TEST_CASE("a signal reaches the group of every worker that runs, however young it is") {
    KeeperFixture fixture;
    for (int rank = 0; rank < 16; ++rank) {
        fixture.start(rank, {"wait"});
    }
    // In the same turn: most of them have not come to exec yet.
    fixture.keeper->signal_workers(Generation(1), first_ranks(16), SIGTERM);
    fixture.run_until([&] { return fixture.ended.size() == 16; });
    for (const auto& [rank, end] : fixture.ended) {
        CHECK(end.signal == SIGTERM);
    }
    fixture.keeper->signal_workers(Generation(1), first_ranks(16), SIGTERM);
    fixture.empty();
}

TEST_CASE("a signal for another generation reaches nobody") {
    KeeperFixture fixture;
    fixture.start(0, {"wait"});
    CHECK(fixture.said(1) == "r");
    fixture.keeper->signal_workers(Generation(2), first_ranks(1), SIGKILL);
    fixture.keeper->signal_workers(Generation(1), first_ranks(1), SIGTERM);
    fixture.run_until([&] { return fixture.ended.contains(0); });
    CHECK(fixture.ended[0].signal == SIGTERM);
}

TEST_CASE("a signal reaches those it is for and nobody else") {
    KeeperFixture fixture;
    for (int rank = 0; rank < 4; ++rank) {
        fixture.start(rank, {"wait"});
    }
    CHECK(fixture.said(4) == "rrrr");
    // No worker has 9.
    fixture.keeper->signal_workers(Generation(1), {LocalRank(3), LocalRank(9), LocalRank(1)},
                                   SIGINT);
    fixture.run_until([&] { return fixture.ended.size() == 2; });
    CHECK(fixture.ended[1].signal == SIGINT);
    CHECK(fixture.ended[3].signal == SIGINT);
    fixture.keeper->signal_workers(Generation(1), first_ranks(4), SIGTERM);
    fixture.run_until([&] { return fixture.ended.size() == 4; });
    CHECK(fixture.ended[0].signal == SIGTERM);
    CHECK(fixture.ended[2].signal == SIGTERM);
}

TEST_CASE("emptied comes after the last exit and proves that no descendant is left") {
    KeeperFixture fixture;
    for (int rank = 0; rank < 4; ++rank) {
        fixture.start(rank, {"family"});
    }
    CHECK(fixture.said(12).size() == 12);
    fixture.empty();
    CHECK(fixture.ended.size() == 4);
    CHECK(fixture.order.back() == "emptied");
    fixture.pipe.write_end.reset();
    CHECK(read_to_end(fixture.pipe.read_end).empty());
}

TEST_CASE("a daemon that outlives its worker does not outlive the generation") {
    KeeperFixture fixture;
    CHECK(fixture.run({"leave_daemon"}).exit_code == 0);
    CHECK(fixture.said(1) == "r");
    fixture.pipe.write_end.reset();
    fixture.empty();
    CHECK(read_to_end(fixture.pipe.read_end).empty());
}

TEST_CASE("no worker starts while another generation is not proven empty") {
    KeeperFixture fixture;
    fixture.start(0, {"wait"});
    fixture.start(1, {"wait"}, {}, Generation(2));
    fixture.run_until([&] { return fixture.ended.contains(1); });
    CHECK(fixture.ended[1].exec_errno == EBUSY);
    fixture.empty();
    fixture.start(1, {"exit", "3"}, {}, Generation(2));
    fixture.ended.clear();
    fixture.run_until([&] { return fixture.ended.contains(1); });
    CHECK(fixture.ended[1].exit_code == 3);
    // An old generation has no process, and a request to empty it harms no other generation.
    fixture.empty();
    CHECK(fixture.emptied == std::vector<std::uint64_t>{1, 1});
}

TEST_CASE("the keeper stays when everybody else is asked to stop") {
    KeeperFixture fixture;
    fixture.start(0, {"wait"});
    CHECK(fixture.said(1) == "r");
    for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1}) {
        REQUIRE(kill(fixture.keeper->keeper_pid(), signal) == 0);
    }
    CHECK(fixture.run({"exit", "5"}).exit_code == 5);
    CHECK(fixture.lost == 0);
}

TEST_CASE("two hundred workers leave no descriptor and no zombie behind") {
    KeeperFixture fixture;
    CHECK(fixture.run({"exit", "0"}).exit_code == 0);
    const std::size_t ours = descriptors_of(getpid());
    const std::size_t keepers = descriptors_of(fixture.keeper->keeper_pid());
    for (int i = 0; i < 200; ++i) {
        CHECK(fixture.run({"exit", "0"}).exit_code == 0);
    }
    CHECK(descriptors_of(getpid()) == ours);
    CHECK(descriptors_of(fixture.keeper->keeper_pid()) == keepers);
    std::ifstream children(
        fmt::format("/proc/{0}/task/{0}/children", fixture.keeper->keeper_pid()));
    std::string text;
    std::getline(children, text);
    CHECK(text.empty());
}

}  // namespace ddprun::agent
