// Goal: nothing that ddprun does needs a privilege. Method: a root that runs this test drops to a
// user without any, with programs and folders of its own; anybody else runs it as is.

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "tests/cluster/plain_user.hpp"
#include "tests/cluster/proc.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun::test;

namespace {

void check_all_belong_to(unsigned user) {
    for (const pid_t pid : descendants()) {
        struct stat status {};
        if (::stat(("/proc/" + std::to_string(pid)).c_str(), &status) == 0) {
            CHECK(status.st_uid == user);
        }
    }
}

pid_t daemon_of(const std::vector<pid_t>& pids) {
    for (const pid_t pid : pids) {
        if (read_file("/proc/" + std::to_string(pid) + "/comm") == "ddprun-rendezvo\n") {
            return pid;
        }
    }
    return -1;
}

}  // namespace

TEST_CASE("a user without privileges runs a job through a failure and the death of its daemon") {
    Cluster cluster;
    PlainUser user(cluster);
    const FreePort port;
    Job job;
    job.endpoint = port.endpoint();
    job.flags = {"--max-restarts", "1"};
    job.script = {
        "--print",     "--when-rank", "1",        "--when-generation", "1",
        "--exit-code", "3",           "--always", "--wait-for-file",   cluster.dir() / "end"};
    Process& a = user.start_node(job);
    Process& b = user.start_node(job);
    a.wait_for_line(place_in(2));
    b.wait_for_line(place_in(2));
    check_all_belong_to(user.id());

    // The head starts another daemon, and the workers never notice.
    const pid_t daemon = daemon_of(descendants());
    REQUIRE(daemon > 0);
    const ddprun::UniqueFd watched = Cluster::watch(daemon);
    REQUIRE(::kill(daemon, SIGKILL) == 0);
    cluster.wait_gone(watched);
    for (bool is_there = false; !is_there;) {
        Process& asking = user.start("ddpctl", {"status", "--rdzv-endpoint", job.endpoint});
        is_there = asking.wait_exit() == 0;
    }
    CHECK(daemon_of(descendants()) > 0);

    touch(cluster.dir() / "end");
    CHECK(a.wait_exit() == 0);
    CHECK(b.wait_exit() == 0);
    CHECK(a.count_lines(place_in(3)) + b.count_lines(place_in(3)) == 0);
    cluster.wait_all_gone();
}

TEST_CASE("a user without privileges runs a job on one node") {
    Cluster cluster;
    PlainUser user(cluster);
    Process& node = user.start("ddprun", {"--log-dir", cluster.dir() / "logs", "--nproc-per-node",
                                          "2", "/bin/sh", "-c", "exit 0"});
    CHECK(node.wait_exit() == 0);
    cluster.wait_all_gone();
}
