#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <string>

#include "agent/process/children.hpp"
#include "base/os/unique_fd.hpp"
#include "tests/support/catch.hpp"

namespace ddprun::agent {

namespace {

/// A process in a session of its own, with an odd name, and a child of it. Both wait for ever.
struct Family {
    Family() {
        int ends[2] = {-1, -1};
        REQUIRE(pipe(ends) == 0);
        const UniqueFd read_end(ends[0]);
        UniqueFd write_end(ends[1]);
        parent = fork();
        if (parent == 0) {
            (void)setsid();
            (void)prctl(PR_SET_NAME, "a) S (b\n");
            if (fork() == 0) {
                (void)!write(write_end.get(), "x", 1);
            }
            for (;;) {
                pause();
            }
        }
        char byte = 0;
        REQUIRE(read(read_end.get(), &byte, 1) == 1);
    }
    ~Family() {
        (void)kill(-parent, SIGKILL);
        (void)waitpid(parent, nullptr, 0);
    }
    Family(const Family&) = delete;
    Family& operator=(const Family&) = delete;

    int parent = 0;
};

bool contains(const std::vector<int>& all, int one) {
    return std::find(all.begin(), all.end(), one) != all.end();
}

}  // namespace

TEST_CASE("a process is read from /proc whatever its name is, and found among descendants") {
    const Family family;
    const std::optional<ProcessStat> stat = stat_of(family.parent);
    REQUIRE(stat.has_value());
    CHECK(stat->name == "a) S (b\n");
    CHECK(stat->parent == getpid());
    CHECK(stat->session == family.parent);
    const std::optional<std::vector<int>> own = own_children();
    REQUIRE(own);
    CHECK(contains(*own, family.parent));
    const std::vector<int> below = children_of(family.parent);
    REQUIRE(below.size() == 1);
    CHECK(stat_of(below[0])->parent == family.parent);
    CHECK(contains(descendants_of(getpid()), family.parent));
    CHECK(contains(descendants_of(getpid()), below[0]));
    CHECK(threads_of(family.parent) == std::vector<int>{family.parent});
}

TEST_CASE("the CPU time that a process uses is read, and that of children that were reaped") {
    const Duration before = stat_of(getpid())->cpu_of_reaped;
    const int child = fork();
    if (child == 0) {
        while (stat_of(getpid())->cpu < std::chrono::milliseconds(50)) {}
        _exit(0);
    }
    REQUIRE(waitpid(child, nullptr, 0) == child);
    CHECK(stat_of(getpid())->cpu_of_reaped - before >= std::chrono::milliseconds(50));
    CHECK_FALSE(stat_of(child).has_value());
}

}  // namespace ddprun::agent
