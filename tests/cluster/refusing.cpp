// What cannot be done gets one line that says what is wrong, the value, and what to do.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "tests/cluster/nodes.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun::test;

TEST_CASE("bad flags and programs are refused with one line") {
    Cluster cluster;
    touch(cluster.dir() / "plain.txt");
    struct Case {
        std::vector<std::string> args;
        int code;
        std::string line;
    };
    const std::vector<Case> cases = {
        {{"--bogus", "true"}, 2, "--bogus"},
        {{"--nnodes", "3:1", "true"}, 2, "3:1"},
        {{"--nproc-per", "2", "true"}, 2, "--nproc-per"},
        {{}, 2, "program|PROGRAM"},
        {{"./missing"}, 127, "\\./missing"},
        {{cluster.dir() / "plain.txt"}, 126, "plain\\.txt"},
        {{"--nnodes", "2", "true"}, 2, "--rdzv-endpoint"},
        {{"--nnodes", "2", "--rdzv-endpoint", "no-such-host.invalid:29400", "true"},
         69,
         "no-such-host\\.invalid"},
    };
    for (const Case& refused : cases) {
        Process& node = cluster.start_ddprun(refused.args);
        CHECK(node.wait_exit() == refused.code);
        INFO(node.text());
        CHECK(node.line_count() == 1);
        CHECK(node.count_lines("^ddprun: .*(" + refused.line + ")") == 1);
    }
    cluster.wait_all_gone();
}

TEST_CASE("flags end at the program") {
    Cluster cluster;
    Process& node = cluster.start_ddprun(
        {Cluster::worker(), "--say", "--nnodes", "--say", "--help", "--exit-code", "7"});
    CHECK(node.wait_exit() == 7);
    CHECK(node.count_lines("^--nnodes$") == 1);
    CHECK(node.count_lines("^--help$") == 1);
    cluster.wait_all_gone();
}

TEST_CASE("a node that disagrees about the job is refused with both values") {
    Cluster cluster;
    const FreePort port;
    Job job;
    job.endpoint = port.endpoint();
    job.script = {"--print", "--wait-for-file", cluster.dir() / "end"};
    Process& a = start_node(cluster, job);
    a.wait_for_line("waiting for 1 node more");
    Job other = job;
    other.nnodes = "2:4";
    Process& refused = start_node(cluster, other);
    CHECK(refused.wait_exit() == 2);
    CHECK(refused.count_lines("join refused: .* --nnodes 2:4 .* with 2") == 1);
    Process& b = start_node(cluster, job);
    b.wait_for_line(place_in(1));
    touch(cluster.dir() / "end");
    CHECK(a.wait_exit() == 0);
    CHECK(b.wait_exit() == 0);
    cluster.wait_all_gone();
}

TEST_CASE("a node with another secret is told so, and the job is not disturbed") {
    Cluster cluster;
    const FreePort port;
    Job job;
    job.endpoint = port.endpoint();
    job.script = {"--print"};
    Process& a = start_node(cluster, job);
    a.wait_for_line("waiting for 1 node more");
    const std::string secret = cluster.dir() / "other-secret";
    write_file(secret, std::string(64, 'a') + "\n");
    REQUIRE(::chmod(secret.c_str(), 0600) == 0);
    Process& stranger = start_node(cluster, job, {"--secret-file", secret});
    CHECK(stranger.wait_exit() == 69);
    CHECK(stranger.count_lines("secret") >= 1);
    Process& b = start_node(cluster, job);
    CHECK(a.wait_exit() == 0);
    CHECK(b.wait_exit() == 0);
    cluster.wait_all_gone();
}
