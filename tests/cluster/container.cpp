// ddprun as the first process of a container: `unshare` gives it a process namespace of its own.

#include <signal.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "agent/process/children.hpp"
#include "tests/cluster/nodes.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using ddprun::agent::children_of;
using namespace ddprun::test;

namespace {

std::vector<std::string> in_container(const Cluster& cluster, std::vector<std::string> args) {
    std::vector<std::string> argv = {"/usr/bin/unshare", "--pid", "--fork", "--kill-child",
                                     "--mount-proc"};
    if (::geteuid() != 0) {
        argv.insert(argv.end(), {"--user", "--map-root-user"});
    }
    args.insert(args.begin(), {Cluster::program("ddprun"), "--log-dir", cluster.dir() / "logs"});
    argv.insert(argv.end(), args.begin(), args.end());
    return argv;
}

bool has_containers() {
    Cluster cluster;
    Process& trial =
        cluster.start({.argv = {"/usr/bin/unshare", "--pid", "--fork", "--mount-proc",
                                ::geteuid() == 0 ? "--mount" : "--map-root-user", "true"},
                       .env = {},
                       .cwd = {},
                       .name = {}});
    if (trial.wait_exit() == 0) {
        return true;
    }
    WARN("SKIPPED: no process namespace can be made here");
    return false;
}

/// ddprun itself has a child of unshare's as init.
pid_t init_of(const Process& container) {
    const std::vector<int> children = children_of(container.pid());
    REQUIRE(children.size() == 1);
    return children[0];
}

}  // namespace

TEST_CASE("as the first process of a container ddprun restarts workers and ends with their code") {
    if (!has_containers()) {
        return;
    }
    const std::string level = GENERATE("keeper", "pid-namespace");
    Cluster cluster;
    Process& container = cluster.start({.argv = in_container(cluster, {"--containment",
                                                                       level,
                                                                       "--nproc-per-node",
                                                                       "2",
                                                                       "--max-restarts",
                                                                       "1",
                                                                       Cluster::worker(),
                                                                       "--print",
                                                                       "--daemonize",
                                                                       "--before-generation",
                                                                       "2",
                                                                       "--exit-code",
                                                                       "3",
                                                                       "--always",
                                                                       "--when-rank",
                                                                       "1",
                                                                       "--exit-code",
                                                                       "7",
                                                                       "--always",
                                                                       "--hang"}),
                                        .env = {},
                                        .cwd = {},
                                        .name = {}});
    CHECK(container.wait_exit() == 7);
    // One that fails may take the other along before that has printed its place.
    CHECK(container.count_lines(place_in(1)) >= 1);
    CHECK(container.count_lines(place_in(2)) >= 1);
    cluster.wait_all_gone();
}

TEST_CASE("a signal to a container's first process drains, and foreign orphans are reaped") {
    if (!has_containers()) {
        return;
    }
    Cluster cluster;
    Process& container =
        cluster.start({.argv = in_container(cluster, {Cluster::worker(), "--exit-on-signal", "15",
                                                      "0", "--say", "ready", "--hang"}),
                       .env = {},
                       .cwd = {},
                       .name = {}});
    container.wait_for_line("^ready$");
    const pid_t init = init_of(container);
    // As `docker exec` would: its grandchild becomes the first process's child and ends.
    Process& visitor =
        cluster.start({.argv = {"/usr/bin/nsenter", "--target", std::to_string(init), "--pid",
                                "/bin/sh", "-c", "(/bin/sh -c 'echo orphan; exit 9' &)"},
                       .env = {},
                       .cwd = {},
                       .name = {}});
    visitor.wait_for_line("^orphan$");
    CHECK(visitor.wait_exit() == 0);
    for (bool is_reaped = false; !is_reaped;) {
        // No event reports the end of a zombie, so a process starts and ends before each look.
        Process& pause = cluster.start({.argv = {"/bin/true"}, .env = {}, .cwd = {}, .name = {}});
        REQUIRE(pause.wait_exit() == 0);
        is_reaped = children_of(init).size() == 1;
    }
    REQUIRE(::kill(init, SIGTERM) == 0);
    CHECK(container.wait_exit() == 128 + SIGTERM);
    CHECK(container.count_lines("SIGTERM: stopping") == 1);
    cluster.wait_all_gone();
}
