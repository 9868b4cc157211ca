// Room for descriptors, made before anybody connects.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "base/os/open_files.hpp"
#include "tests/support/catch.hpp"

using namespace ddprun;

namespace {

constexpr rlim_t kHardLimit = 4096;

/// How many descriptors the kernel has room for in this process: FDSize of /proc/self/status; 0: it
/// does not say.
std::size_t room() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
        if (line.starts_with("FDSize:")) {
            return std::strtoul(line.c_str() + line.find(':') + 1, nullptr, 10);
        }
    }
    return 0;
}

rlim_t soft_limit() {
    rlimit limit{};
    return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : 0;
}

/// Returns the answer of `is_so` in a process with a soft limit of 64 and a hard one of
/// kHardLimit, after raise_open_files(expected).
template <typename Predicate>
bool holds_after_raising(std::size_t expected, Predicate is_so) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        const rlimit limit{.rlim_cur = 64, .rlim_max = kHardLimit};
        const bool is_limited = setrlimit(RLIMIT_NOFILE, &limit) == 0;
        raise_open_files(expected);
        _exit(is_limited && is_so() ? 0 : 1);
    }
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

TEST_CASE("the soft limit of open files is raised to the hard one") {
    CHECK(holds_after_raising(0, [] { return soft_limit() == kHardLimit; }));
}

TEST_CASE("the kernel has room for as many descriptors as were expected") {
    CHECK(holds_after_raising(0, [] { return room() < 2000; }));
    CHECK(holds_after_raising(2000, [] { return room() >= 2000; }));
}

TEST_CASE("more descriptors than are allowed get the room that is allowed") {
    CHECK(holds_after_raising(1'000'000, [] { return room() == kHardLimit; }));
}

TEST_CASE("making room leaves no descriptor open") {
    CHECK(holds_after_raising(2000, [] {
        const int next = dup(STDERR_FILENO);
        close(next);
        raise_open_files(3000);
        return dup(STDERR_FILENO) == next && fcntl(2999, F_GETFD) < 0;
    }));
}
