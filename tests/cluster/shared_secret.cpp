// Goal: nodes of a scheduler's job that share the job's folder, and no home, need no thought about
// their secret. Method: two ddprun with homes of their own, told by the variables of AWS Batch that
// they are two nodes, in a folder that a library in libc's place calls one of NFS.

#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <string>

#include "tests/cluster/nodes.hpp"
#include "tests/cluster/proc.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun::test;

namespace {

/// Also in the port that both choose.
std::string job_name() {
    return "job-" + std::to_string(::getpid());
}

Process& start_node(Cluster& cluster, int rank) {
    const std::string home = cluster.dir() / ("home" + std::to_string(rank));
    REQUIRE(::mkdir(home.c_str(), 0700) == 0);
    return cluster.start_ddprun({"--rdzv-conf", "last_call_timeout=0", Cluster::worker(), "--print",
                                 "--wait-for-file", cluster.dir() / "end"},
                                {{"AWS_BATCH_JOB_ID", job_name()},
                                 {"AWS_BATCH_JOB_NUM_NODES", "2"},
                                 {"AWS_BATCH_JOB_NODE_INDEX", std::to_string(rank)},
                                 {"AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS", "127.0.0.1"},
                                 {"HOME", home},
                                 {"XDG_CONFIG_HOME", ""},
                                 {"LD_PRELOAD", DDPRUN_FAKE_STATFS},
                                 {"FAKE_STATFS_SHARED", cluster.dir().path()},
                                 {"FAKE_STATFS_LOCAL", cluster.dir() / "home"}});
}

std::string secret_in(const Cluster& cluster) {
    return cluster.dir() / (".ddprun-secret-" + job_name());
}

}  // namespace

TEST_CASE("nodes that share no home meet by a secret in their job's folder, which goes with it") {
    Cluster cluster;
    Process& first = start_node(cluster, 0);
    Process& second = start_node(cluster, 1);
    first.wait_for_line(place_in(1));
    second.wait_for_line(place_in(1));
    CHECK(first.count_lines("homes are not shared: the nodes' secret is ") == 1);
    struct stat status {};
    REQUIRE(::stat(secret_in(cluster).c_str(), &status) == 0);
    CHECK((status.st_mode & 07777) == 0600);
    const std::string secret = read_file(secret_in(cluster)).substr(0, 64);
    REQUIRE(secret.size() == 64);
    for (const pid_t pid : descendants()) {
        const std::string folder = "/proc/" + std::to_string(pid);
        CHECK(read_file(folder + "/cmdline").find(secret) == std::string::npos);
        CHECK(read_file(folder + "/environ").find(secret) == std::string::npos);
    }
    touch(cluster.dir() / "end");
    CHECK(first.wait_exit() == 0);
    CHECK(second.wait_exit() == 0);
    CHECK(::access(secret_in(cluster).c_str(), F_OK) != 0);
    CHECK(::access((cluster.dir() / "home0/.config/ddprun/secret").c_str(), F_OK) != 0);
    cluster.wait_all_gone();
}

TEST_CASE("a secret in the job's folder that others may read is refused, and stays") {
    Cluster cluster;
    write_file(secret_in(cluster), std::string(64, 'a') + "\n");
    REQUIRE(::chmod(secret_in(cluster).c_str(), 0644) == 0);
    Process& first = start_node(cluster, 0);
    CHECK(first.wait_exit() == 2);
    CHECK(first.count_lines("is open to other users \\(mode 0644\\); run: chmod 600 ") == 1);
    CHECK(::access(secret_in(cluster).c_str(), F_OK) == 0);
    cluster.wait_all_gone();
}
