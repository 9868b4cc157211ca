// Goal: the daemon's log. Its reader may be slow, stop, or be gone; nothing waits for it, and what
// it could not take is counted.

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "base/os/unique_fd.hpp"
#include "rendezvous/server/log_writer.hpp"
#include "tests/support/catch.hpp"

namespace ddprun::rdzv {
namespace {

struct Pipe {
    Pipe() {
        int fds[2];
        REQUIRE(::pipe2(fds, O_CLOEXEC) == 0);
        read_end.reset(fds[0]);
        write_end.reset(fds[1]);
    }

    std::string read(std::size_t size) {
        std::string text(size, '\0');
        std::size_t count = 0;
        while (count < size) {
            const ssize_t more = ::read(read_end.get(), text.data() + count, size - count);
            if (more <= 0) {
                break;
            }
            count += static_cast<std::size_t>(more);
        }
        text.resize(count);
        return text;
    }
    std::string read_all() {
        write_end.reset();
        return read(std::size_t{16} << 20);
    }

    UniqueFd read_end;
    UniqueFd write_end;
};

std::string lines_of(std::size_t count) {
    std::string lines;
    for (std::size_t i = 0; i < count; ++i) {
        lines += std::to_string(i) + std::string(100, '.') + "\n";
    }
    return lines;
}

TEST_CASE("all that was logged is written in order when the log ends") {
    Pipe pipe;
    {
        LogWriter log(pipe.write_end.get(), Limits{.log_flush_timeout = Milliseconds(60000)});
        for (int i = 0; i < 100; ++i) {
            log.write(std::to_string(i) + "\n");
        }
        REQUIRE(log.flush());
        REQUIRE(pipe.read(4) == "0\n1\n");
        log.write("last\n");
    }
    REQUIRE(pipe.read_all().ends_with("\n98\n99\nlast\n"));
}

TEST_CASE("lines that a stopped reader leaves no room for are counted where they would be") {
    Pipe pipe;
    const std::string flood = lines_of(2000);  // more than the pipe takes
    LogWriter log(pipe.write_end.get(),
                  {.log_backlog_bytes_max = flood.size(), .log_flush_timeout = Milliseconds(1)});
    log.write(flood);
    // The writer has taken it: from now on the pipe is full.
    REQUIRE(pipe.read(1) == flood.substr(0, 1));
    log.write(flood);
    log.write("lost\n");
    log.write("lost, too\n");
    REQUIRE_FALSE(log.flush());
    const std::string rest = flood.substr(1) + flood +
                             "ddprun-rendezvous: 2 lines are missing here: nobody read this log\n";
    REQUIRE(pipe.read(rest.size()) == rest);
    log.write("here again\n");
    REQUIRE(pipe.read(11) == "here again\n");
}

TEST_CASE("a log ends although its reader has stopped or gone") {
    Pipe pipe;
    LogWriter log(pipe.write_end.get(), {.log_flush_timeout = Milliseconds(1)});
    log.write(lines_of(5000));
    if (GENERATE(false, true)) {
        pipe.read_end.reset();
    }
}

TEST_CASE("abort() writes what was logged first") {
    Pipe pipe;
    const std::string lines = lines_of(5000);
    const pid_t child = ::fork();
    if (child == 0) {
        const rlimit no_core{};
        ::setrlimit(RLIMIT_CORE, &no_core);
        // A busy machine may leave the reader no time for longer than a daemon would wait.
        LogWriter log(pipe.write_end.get(), Limits{.log_flush_timeout = Milliseconds(60000)});
        flush_at_abort(log);
        log.write(lines);
        std::abort();
    }
    REQUIRE(child > 0);
    const std::string written = pipe.read_all();
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));
    REQUIRE(WTERMSIG(status) == SIGABRT);
    REQUIRE(written == lines);
}

}  // namespace
}  // namespace ddprun::rdzv
