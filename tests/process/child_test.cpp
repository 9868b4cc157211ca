// Goal: a helper program is started with what it is given and nothing else, is known to have ended
// only when it has, and is reaped. Method: real programs, as on this kernel and as on an old one.

#include "base/os/child.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "base/os/helper.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/old_kernel.hpp"

namespace {

int folders_opened = 0;

}  // namespace

/// In the place of the C library's, which allocates.
extern "C" DIR* opendir(const char* path) {
    ++folders_opened;
    const int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return folder < 0 ? nullptr : fdopendir(folder);
}

namespace ddprun {
namespace {

struct Pipe {
    Pipe() {
        int fds[2] = {-1, -1};
        REQUIRE(pipe2(fds, O_CLOEXEC) == 0);
        read_end.reset(fds[0]);
        write_end.reset(fds[1]);
    }
    [[nodiscard]] std::string read_all() {
        write_end.reset();
        std::string text;
        char buffer[512];
        for (ssize_t got = 1; got > 0;) {
            got = read(read_end.get(), buffer, sizeof buffer);
            text.append(buffer, got > 0 ? static_cast<std::size_t>(got) : 0);
        }
        return text;
    }
    UniqueFd read_end;
    UniqueFd write_end;
};

bool has_no_child() {
    return waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD;
}

/// The exit code of `sh -c script`, and its output.
std::pair<int, std::string> run_shell(const std::string& script) {
    boost::asio::io_context io(1);
    Child child(io);
    Pipe pipe;
    ProgramSpec spec;
    spec.command = {"/bin/sh", "-c", script};
    spec.fds = {FdMapping{.from = pipe.write_end.get(), .to = STDOUT_FILENO}};
    REQUIRE(child.start(spec).has_value());
    std::optional<siginfo_t> seen;
    child.async_wait([&](const siginfo_t& end) { seen = end; });
    io.run();
    REQUIRE(seen.has_value());
    CHECK(child.pid() == 0);
    CHECK(has_no_child());
    return {seen->si_code == CLD_EXITED ? seen->si_status : -seen->si_status, pipe.read_all()};
}

/// Runs `check` in a process of its own for which the kernel is old. Its exit code.
template <typename Check>
int on_old_kernel(const Check& check) {
    const pid_t pid = fork();
    if (pid == 0) {
        _exit(test::make_kernel_old() ? check() : test::kNoFilter);
    }
    int status = 0;
    REQUIRE(waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST_CASE("how a child has ended is told as it was") {
    CHECK(run_shell("exit 7") == std::pair(7, std::string()));
    CHECK(run_shell("echo here; kill -9 $$") == std::pair(-SIGKILL, std::string("here\n")));
}

TEST_CASE("a program that cannot be executed is named with the reason, and leaves no child") {
    boost::asio::io_context io(1);
    Child child(io);
    ProgramSpec spec;
    spec.command = {"/nowhere/at-all"};
    const Result<void> started = child.start(spec);
    REQUIRE(started.has_error());
    CHECK(started.error().what == "cannot start /nowhere/at-all: No such file or directory");
    spec.command = {"/etc/passwd"};
    CHECK(child.start(spec).error().what == "cannot start /etc/passwd: Permission denied");
    CHECK(child.pid() == 0);
    CHECK(has_no_child());
}

TEST_CASE("a program has the descriptors it is given, default signals and a session of its own") {
    const UniqueFd careless(fcntl(STDERR_FILENO, F_DUPFD, 20));  // not close-on-exec
    struct sigaction before {};
    REQUIRE(sigaction(SIGUSR1, nullptr, &before) == 0);
    (void)std::signal(SIGUSR1, SIG_IGN);
    Pipe pipe;
    ProgramSpec spec;
    spec.command = {"/bin/sh", "-c",
                    "n=0; while [ $n -lt 64 ]; do"
                    " [ ! -e /proc/$$/fd/$n ] || echo $n; n=$((n + 1)); done;"
                    "cut -d' ' -f6 /proc/$$/stat; echo $$;"
                    "exec grep -E '^Sig(Ign|Blk)' /proc/self/status"};
    const int source = pipe.write_end.get();
    spec.fds = {FdMapping{.from = source, .to = STDOUT_FILENO}, FdMapping{.from = source, .to = 5}};
    const Result<StartedProgram> started = start_program(spec);
    REQUIRE(sigaction(SIGUSR1, &before, nullptr) == 0);
    REQUIRE(started.has_value());
    const std::string own = std::to_string(started->pid) + "\n";
    CHECK(pipe.read_all() ==
          "0\n1\n2\n5\n" + own + own + "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
    REQUIRE(waitpid(started->pid, nullptr, 0) == started->pid);
}

TEST_CASE("a wake that is not an end is waited out") {
    boost::asio::io_context io(1);
    Pipe always_readable;
    REQUIRE(write(always_readable.write_end.get(), "x", 1) == 1);
    ProgramSpec spec;
    spec.command = {"/bin/sleep", "1000"};
    Result<StartedProgram> started = start_program(spec);
    REQUIRE(started.has_value());
    const int pid = started->pid;
    // In its pidfd's place: what wakes, and says nothing about it.
    started->pidfd = std::move(always_readable.read_end);
    Child child(io);
    child.adopt(std::move(*started));
    std::optional<siginfo_t> seen;
    child.async_wait([&](const siginfo_t& end) { seen = end; });
    CHECK(io.run_one() == 1);
    CHECK(io.run_one() == 1);
    CHECK_FALSE(seen.has_value());
    CHECK(child.pid() == pid);
    child.signal(SIGKILL);
    io.run();
    REQUIRE(seen.has_value());
    CHECK(seen->si_code == CLD_KILLED);
    CHECK(seen->si_status == SIGKILL);
}

TEST_CASE("the end of a child whose pidfd the kernel cannot watch is told as without one") {
    // One epoll in another, until no other one takes the last.
    std::vector<UniqueFd> nested;
    epoll_event event{};
    for (bool is_taken = true; is_taken;) {
        UniqueFd next(epoll_create1(EPOLL_CLOEXEC));
        REQUIRE(next.is_open());
        is_taken = nested.empty() ||
                   epoll_ctl(next.get(), EPOLL_CTL_ADD, nested.back().get(), &event) == 0;
        if (is_taken) {
            nested.push_back(std::move(next));
        }
    }
    boost::asio::io_context io;
    ProgramSpec spec;
    spec.command = {"/bin/sh", "-c", "exit 7"};
    Result<StartedProgram> started = start_program(spec);
    REQUIRE(started.has_value());
    started->pidfd = std::move(nested.back());
    nested.pop_back();
    Child child(io);
    child.adopt(std::move(*started));
    std::optional<siginfo_t> seen;
    child.async_wait([&](const siginfo_t& end) { seen = end; });
    io.run();
    REQUIRE(seen.has_value());
    CHECK(seen->si_status == 7);
}

TEST_CASE("without pidfd the end of a child is told as with it") {
    const int code = on_old_kernel([] {
        const UniqueFd careless(fcntl(STDERR_FILENO, F_DUPFD, 20));
        const bool is_right = !open_pidfd(getpid()).is_open() && run_shell("exit 7").first == 7 &&
                              run_shell("kill -9 $$").first == -SIGKILL &&
                              run_shell("test ! -e /proc/self/fd/20").first == 0;
        return is_right ? 0 : 1;
    });
    if (code == test::kNoFilter) {
        WARN("LEFT OUT: this machine allows no seccomp filter");
        return;
    }
    CHECK(code == 0);
}

TEST_CASE("on an old kernel a child closes descriptors without a call that allocates") {
    constexpr int kFirst = 100;
    constexpr int kLast = 400;  // More than one answer of the kernel lists.
    const int code = on_old_kernel([] {
        const UniqueFd kept(fcntl(STDERR_FILENO, F_DUPFD, kFirst - 1));
        for (int fd = kFirst; fd <= kLast; ++fd) {
            if (dup2(STDERR_FILENO, fd) != fd) {
                return 2;
            }
        }
        folders_opened = 0;
        close_on_exec_from(kFirst);
        if (folders_opened != 0) {
            return 3;
        }
        for (int fd = kFirst; fd <= kLast; ++fd) {
            if (fcntl(fd, F_GETFD) != FD_CLOEXEC) {
                return 4;
            }
        }
        return fcntl(kept.get(), F_GETFD) == 0 ? 0 : 5;
    });
    if (code == test::kNoFilter) {
        WARN("LEFT OUT: this machine allows no seccomp filter");
        return;
    }
    CHECK(code == 0);
}

TEST_CASE("a timed program on an old kernel ends by itself, or when its time is up") {
    const int code = on_old_kernel([] {
        boost::asio::io_context io(1);
        int ends = 0;
        std::optional<siginfo_t> seen;
        Helper program(io, {.on_child = [](int) {},
                            .on_end =
                                [&](const std::optional<siginfo_t>& end) {
                                    ++ends;
                                    seen = end;
                                }});
        ProgramSpec spec;
        spec.command = {"/bin/sh", "-c", "exit 5"};
        bool is_right = program.start(spec, Milliseconds(60000)).has_value();
        io.run();
        is_right = is_right && ends == 1 && seen && seen->si_status == 5;
        spec.command = {"/bin/sleep", "1000"};
        is_right = is_right && program.start(spec, Milliseconds(1)).has_value();
        io.restart();
        io.run();  // Until the one that was given up is reaped.
        return is_right && ends == 2 && !seen && !program.is_stuck() && has_no_child() ? 0 : 1;
    });
    if (code == test::kNoFilter) {
        WARN("LEFT OUT: this machine allows no seccomp filter");
        return;
    }
    CHECK(code == 0);
}

}  // namespace ddprun
