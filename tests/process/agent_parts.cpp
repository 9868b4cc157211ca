// The parts of an agent when things go wrong: a file system that does not answer, no
// descriptor left, an agent that is killed. A lease on a file stands for a file system that stalls:
// a process that opens or executes that file, or asks this test's stat() for it, waits until the
// lease is given back.

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>

#include "agent/daemon/store_host.hpp"
#include "agent/daemon/warm_start.hpp"
#include "agent/helpers/preflight_command.hpp"
#include "agent/notices/file_notice.hpp"
#include "base/os/child.hpp"
#include "base/os/file_identity.hpp"
#include "base/os/start_program.hpp"
#include "base/os/unique_fd.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"
#include "worker_runtime/contract/standby.hpp"

using namespace ddprun;
using namespace ddprun::agent;

namespace {

class StalledFile {
public:
    explicit StalledFile(const std::string& path)
        : file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
        (void)std::signal(SIGIO, SIG_IGN);  // By it the kernel asks for the lease.
        REQUIRE(file_.is_open());
        is_possible_ = ::fcntl(file_.get(), F_SETLEASE, F_WRLCK) == 0;
        if (!is_possible_) {
            WARN("LEFT OUT: no lease can be had on " << path);
        }
    }
    [[nodiscard]] bool is_possible() const { return is_possible_; }

    /// False once a process has been let in, be it because the kernel has lost patience.
    [[nodiscard]] bool is_stalled() const { return ::fcntl(file_.get(), F_GETLEASE) != F_UNLCK; }
    void answer() { CHECK(::fcntl(file_.get(), F_SETLEASE, F_UNLCK) == 0); }

private:
    UniqueFd file_;
    bool is_possible_ = false;
};

void run_until(boost::asio::io_context& io, const std::function<bool()>& is_true) {
    const auto work = boost::asio::make_work_guard(io);
    while (!is_true()) {
        io.restart();
        REQUIRE(io.run_one_for(test::kDeadline) == 1);
    }
}

struct Pipe {
    Pipe() {
        std::array<int, 2> ends{};
        REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
        read_end.reset(ends[0]);
        write_end.reset(ends[1]);
    }
    UniqueFd read_end;
    UniqueFd write_end;
};

/// A lease stops no stat() of libc's: that of this test opens a file of this name first.
const std::string kStallingProgram = "stalling_program";
std::atomic<int> looks_at_it = 0;

bool is_empty(const UniqueFd& pipe) {
    int bytes = 0;
    REQUIRE(::ioctl(pipe.get(), FIONREAD, &bytes) == 0);
    return bytes == 0;
}

}  // namespace

// In the place of libc's.
extern "C" int stat(const char* path, struct stat* told) noexcept {
    if (std::string_view(path).ends_with(kStallingProgram)) {
        ++looks_at_it;
        const UniqueFd waits_for_the_lease(::open(path, O_RDONLY | O_CLOEXEC));
    }
    return ::fstatat(AT_FDCWD, path, told, 0);
}

TEST_CASE("a notice on a file system that stalls holds nobody up, and is heard when that answers") {
    const test::TempDir dir;
    const std::string path = dir / "notice";
    test::write_file(path, "soon\n");
    StalledFile stalled(path);
    if (!stalled.is_possible()) {
        return;
    }
    boost::asio::io_context io(1);
    Limits limits;
    limits.drain_look_every = Milliseconds(20);
    std::string said;
    int notices = 0;
    NoticeEvents events;
    events.say = [&](const std::string& line) { said += line + "\n"; };
    events.on_notice = [&](const LeaveNotice& /*notice*/) { ++notices; };
    {
        FileNotice notice(io, limits, path, std::move(events));
        notice.start();
        run_until(io, [&] { return said.find("has not answered for") != std::string::npos; });
        REQUIRE(stalled.is_stalled());
        CHECK(notices == 0);
        SECTION("and then it answers") {
            stalled.answer();
            run_until(io, [&] { return notices > 0; });
            notice.stop();
        }
        SECTION("or it never does") {
            notice.stop();
        }
    }
    CHECK(notices <= 1);
    if (stalled.is_stalled()) {
        stalled.answer();
    }
    CHECK(said.find('\n') == said.size() - 1);
}

TEST_CASE("standbys wait for a program on a file system that stalls, and the agent does not") {
    const test::TempDir dir;
    const std::string path = dir / kStallingProgram;
    test::write_file(path, "program\n");
    const std::string told = std::string(kWaitsLine) + file_identity(path) + "\n";
    boost::asio::io_context io(1);
    SupervisorOptions options;
    options.command = {path};
    options.limits.standby_after = Milliseconds(0);
    options.limits.standby_quiet = Milliseconds(0);
    int keepers = 0;
    int settled = 0;
    WarmStart::Events events;
    events.say = [](const std::string& /*line*/) {};
    events.start_keeper = [&]() -> Result<std::unique_ptr<KeeperHandle>> {
        ++keepers;
        return Error{ErrorCode::NotFound, "none is needed here"};
    };
    events.moments = [&] {
        ++settled;
        return std::vector<WorkerMoments>();
    };
    WarmStart warm(io, options, {.program = "program", .learns = true}, std::move(events));
    const UniqueFd worker = warm.imports_pipe(LocalRank(0));
    looks_at_it = 0;
    {
        // A worker has told that its program waits: is it that file?
        StalledFile stalled(path);
        if (!stalled.is_possible()) {
            return;
        }
        REQUIRE(::write(worker.get(), told.data(), told.size()) ==
                static_cast<ssize_t>(told.size()));
        run_until(io, [&] { return is_empty(worker); });
        REQUIRE(settled == 1);  // It settles again once it has the answer.
        stalled.answer();
        run_until(io, [&] { return settled == 2; });
    }
    {
        // A standby is due: is it still that file?
        StalledFile stalled(path);
        warm.begin();
        REQUIRE(keepers == 0);
        stalled.answer();
        run_until(io, [&] { return keepers == 1; });
    }
    CHECK(looks_at_it == 2);
}

TEST_CASE("a helper program on a file system that stalls is started without waiting for it") {
    const test::TempDir dir;
    const std::string path = dir / "helper";
    test::write_file(path, "#!/bin/sh\nexit 5\n");
    REQUIRE(::chmod(path.c_str(), 0700) == 0);
    StalledFile stalled(path);
    if (!stalled.is_possible()) {
        return;
    }
    boost::asio::io_context io(1);
    Child child(io);
    ProgramSpec spec;
    spec.command = {path};
    spec.may_be_slow = true;
    REQUIRE(child.start(spec).has_value());
    CHECK(stalled.is_stalled());
    std::optional<siginfo_t> seen;
    child.async_wait([&](const siginfo_t& end) { seen = end; });
    stalled.answer();
    run_until(io, [&] { return seen.has_value(); });
    CHECK(seen->si_status == 5);
}

TEST_CASE("a program that may stall has the environment of any other") {
    // A shell would set PWD and _; what workers inherit comes through a keeper that is started so.
    const test::TempDir dir;
    const std::string told = dir / "told";
    ::setenv("TOLD", told.c_str(), 1);
    std::vector<std::string> seen;
    for (const bool may_be_slow : {false, true}) {
        boost::asio::io_context io(1);
        Child child(io);
        ProgramSpec spec;
        spec.command = {"/usr/bin/python3", "-c",
                        "import os; open(os.environ['TOLD'], 'w').write(repr(os.environ))"};
        spec.may_be_slow = may_be_slow;
        REQUIRE(child.start(spec).has_value());
        std::optional<siginfo_t> end;
        child.async_wait([&](const siginfo_t& told_end) { end = told_end; });
        run_until(io, [&] { return end.has_value(); });
        REQUIRE(has_succeeded(*end));
        seen.push_back(test::read_file(told));
    }
    ::unsetenv("TOLD");
    CHECK(seen[0] == seen[1]);
}

TEST_CASE("a helper program that is not there ends as env says so") {
    boost::asio::io_context io(1);
    Child child(io);
    ProgramSpec spec;
    spec.command = {"/nowhere/at all", "argument"};
    spec.may_be_slow = true;
    REQUIRE(child.start(spec).has_value());
    std::optional<siginfo_t> seen;
    child.async_wait([&](const siginfo_t& end) { seen = end; });
    run_until(io, [&] { return seen.has_value(); });
    CHECK(seen->si_status == 127);
}

TEST_CASE("a fixed store port without a descriptor left is a failure that is told") {
    std::uint16_t port = 0;
    {
        const Result<rdzv::StoreSocket> free = rdzv::listen_for_store("127.0.0.1", 0);
        REQUIRE(free.has_value());
        port = free->port;
    }
    StoreHost store(Limits(), StoreHost::Server::Agent, port, [](const std::string& /*line*/) {});
    REQUIRE(store.open("127.0.0.1").has_value());
    store.serve({});
    rlimit before{};
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
    const rlimit none{1, before.rlim_max};  // With 0 a duplicate is an invalid argument.
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
    const Result<StoreAddress> again = store.open("127.0.0.1");
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
    REQUIRE(again.has_error());
    CHECK(again.error().what.find("Too many open files") != std::string::npos);
    REQUIRE(store.open("127.0.0.1").has_value());
    store.close();
}

TEST_CASE("a store without descriptors to serve with is a failure before it is needed") {
    StoreHost store(Limits(), StoreHost::Server::Agent, 0, [](const std::string& /*line*/) {});
    rlimit before{};
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
    const rlimit none{0, before.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
    const Result<StoreAddress> opened = store.open("127.0.0.1");
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
    REQUIRE(opened.has_error());
    CHECK(opened.error().what.find("no descriptors to serve a store with") == 0);
    // Serving needs no descriptor beyond those that open() takes.
    REQUIRE(store.open("127.0.0.1").has_value());
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
    store.serve({});
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
    store.close();
}

TEST_CASE("a preflight command dies with its agent, and what it has started") {
    Pipe pipe;
    const pid_t agent = ::fork();
    REQUIRE(agent >= 0);
    if (agent == 0) {
        ::dup2(pipe.write_end.get(), STDOUT_FILENO);
        boost::asio::io_context io(1);
        PreflightCommand command(
            io, "sleep 100 & echo; sleep 100; true", Milliseconds(1000000),
            {.on_child = [](int /*pid*/) {}, .on_done = [](const std::string& /*why*/) {}});
        command.run();
        io.run();
        ::_exit(0);
    }
    pipe.write_end.reset();
    char byte = 0;
    REQUIRE(::read(pipe.read_end.get(), &byte, 1) == 1);
    REQUIRE(::kill(agent, SIGKILL) == 0);
    REQUIRE(::waitpid(agent, nullptr, 0) == agent);
    // Each of them holds the other end.
    pollfd ended{pipe.read_end.get(), POLLIN, 0};
    REQUIRE(::poll(&ended, 1, 30000) == 1);
    CHECK(::read(pipe.read_end.get(), &byte, 1) == 0);
}

TEST_CASE("what a preflight command leaves running on purpose goes on after it") {
    Pipe alive;
    boost::asio::io_context io(1);
    std::optional<std::string> done;
    int pid = 0;
    const int kept = ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
    REQUIRE(::dup2(alive.write_end.get(), STDERR_FILENO) == STDERR_FILENO);
    PreflightCommand preflight(
        io, "sleep 1000 >/dev/null 2>&1 & echo $! >&2", Milliseconds(60000),
        {.on_child = [](int /*pid*/) {}, .on_done = [&](const std::string& why) { done = why; }});
    preflight.run();
    REQUIRE(::dup2(kept, STDERR_FILENO) == STDERR_FILENO);
    ::close(kept);
    run_until(io, [&] { return done.has_value(); });
    CHECK(done->empty());
    std::array<char, 32> text{};
    REQUIRE(::read(alive.read_end.get(), text.data(), text.size() - 1) > 0);
    pid = std::atoi(text.data());
    REQUIRE(pid > 1);
    // The watch beside the command has ended without killing it: that alone held the pipe.
    alive.write_end.reset();
    CHECK(::read(alive.read_end.get(), text.data(), text.size()) == 0);
    CHECK(::kill(pid, SIGKILL) == 0);
}

TEST_CASE("a preflight command finds no child but its own, and ends as it ends") {
    boost::asio::io_context io(1);
    std::optional<std::string> done;
    const auto check = [&](const std::string& command) {
        PreflightCommand preflight(io, command, Milliseconds(30000),
                                   {.on_child = [](int /*pid*/) {},
                                    .on_done = [&](const std::string& why) { done = why; }});
        done.reset();
        preflight.run();
        run_until(io, [&] { return done.has_value(); });
        return *done;
    };
    // os.wait() fails once there is no child left.
    const std::string waits = "try:\n while True: os.wait()\nexcept ChildProcessError: pass\n";
    CHECK(check("exec python3 -c 'import os\nif os.fork() == 0: os._exit(0)\n" + waits + "'")
              .empty());
    CHECK(check("exit 137") == "exited with code 137");
    CHECK(check("kill -KILL $$") == "was killed by SIGKILL");
}
