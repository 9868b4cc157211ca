// ddprun refuses an impossible request in one line with the mistake, the value, and what to do.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
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
        {{"--nnodes", "2", "--rdzv-endpoint", "10.0.0.256:29400", "true"}, 2, "10\\.0\\.0\\.256"},
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
    a.wait_for_line(
        "waiting for 1 node more: 1 of 2 here \\(.*\\); turned away: join refused: .* --nnodes 2:4 "
        ".* with 2.*; [0-9]+ s of 600 s \\(--rdzv-conf join_timeout\\)");
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
    CHECK(stranger.wait_exit() == 2);
    CHECK(stranger.count_lines("secret") >= 1);
    a.wait_for_line(
        "waiting for 1 node more: .*; turned away: 127.0.0.1: its secret is not ours; "
        "copy .* or start it with the same --secret-file");
    Process& open = start_node(cluster, job, {"--insecure"});
    CHECK(open.wait_exit() == 2);
    CHECK(open.count_lines("was started with a secret|asks for a secret|--insecure") >= 1);
    Process& b = start_node(cluster, job);
    CHECK(a.wait_exit() == 0);
    CHECK(b.wait_exit() == 0);
    cluster.wait_all_gone();
}

TEST_CASE("a place for the secret that cannot be used is refused with what to do") {
    Cluster cluster;
    touch(cluster.dir() / "file");
    const FreePort port;
    Job job;
    job.endpoint = port.endpoint();
    // No home, a folder that cannot be made, a file that others may read.
    const std::string open = cluster.dir() / "open";
    write_file(open, std::string(64, 'a') + "\n");
    REQUIRE(::chmod(open.c_str(), 0644) == 0);
    const std::vector<std::map<std::string, std::string>> places = {
        {{"HOME", ""}, {"XDG_CONFIG_HOME", ""}},
        {{"XDG_CONFIG_HOME", cluster.dir() / "file"}},
        {{"DDPRUN_SECRET_FILE", open}},
    };
    for (const auto& place : places) {
        Process& node = cluster.start_ddprun(node_args(job), place);
        CHECK(node.wait_exit() == 2);
        INFO(node.text());
        CHECK(node.count_lines("^ddprun: .*(--secret-file|chmod 600)") == 1);
        for (const char* name : {"ddpctl", "ddprun-rendezvous"}) {
            std::vector<std::string> argv = {Cluster::program(name)};
            if (name == std::string("ddpctl")) {
                argv.insert(argv.end(), {"status", "--rdzv-endpoint", job.endpoint});
            } else {
                argv.insert(argv.end(), {"--port", "0"});
            }
            Process& program = cluster.start({.argv = argv, .env = place});
            CHECK(program.wait_exit() == 2);
            INFO(program.text());
            CHECK(program.line_count() == 1);
        }
    }
    cluster.wait_all_gone();
}
