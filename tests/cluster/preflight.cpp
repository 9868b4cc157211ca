// --preflight-command: a node that is not fit does not take part.

#include <signal.h>

#include <filesystem>
#include <string>

#include "tests/cluster/nodes.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun::test;

TEST_CASE("a node on which the preflight command fails starts nothing and exits with 97") {
    Cluster cluster;
    const std::string command =
        GENERATE(as<std::string>{}, "echo bad disk >&2; exit 3", "kill -9 $$", "sleep 1000");
    Process& node = cluster.start_ddprun({"--preflight-command", command, "--preflight-timeout",
                                          command == "sleep 1000" ? "0.05" : "50",
                                          Cluster::worker(), "--print", "--exit-code", "0"});
    CHECK(node.wait_exit() == 97);
    CHECK(node.count_lines("^worker ") == 0);
    CHECK(node.count_lines("the preflight command (exited with code 3|was killed by SIGKILL|took "
                           "longer than 0.05 s): this node is not fit and leaves the job") == 1);
    CHECK(node.count_lines("^bad disk$") == (command.starts_with("echo") ? 1 : 0));
    cluster.wait_all_gone();
}

TEST_CASE("a node that is not fit any more after a failure leaves, and a spare takes its place") {
    Cluster cluster;
    const FreePort port;
    const std::string end = cluster.dir() / "end";
    const std::string fail = cluster.dir() / "fail";
    Job job;
    job.endpoint = port.endpoint();
    job.flags = {"--max-restarts", "3", "--preflight-command", "test ! -e \"$FAULT\""};
    job.script = {
        "--print",  "--before-generation", "2", "--wait-for-file", fail, "--exit-code", "3",
        "--always", "--wait-for-file",     end, "--exit-code",     "0"};
    const auto start = [&](const std::string& name) -> Process& {
        return cluster.start_ddprun(node_args(job), {{"FAULT", cluster.dir() / name}});
    };
    Process& a = start("fault-a");
    Process& b = start("fault-b");
    a.wait_for_line(place_in(1));
    b.wait_for_line(place_in(1));
    Process& spare = start("fault-spare");
    spare.wait_for_line("spare");
    touch(cluster.dir() / "fault-b");
    touch(fail);
    CHECK(b.wait_exit() == 97);
    a.wait_for_line(place_in(2));
    spare.wait_for_line(place_in(2));
    a.wait_for_line("node .* is not fit$");
    // It is checked before it joins again, too; and fit again it is not trusted at once.
    Process& again = start("fault-b");
    CHECK(again.wait_exit() == 97);
    std::filesystem::remove(cluster.dir() / "fault-b");
    Process& cured = start("fault-b");
    cured.wait_for_line(
        "this one is not fit \\(its preflight command exited with code 1\\), so it is left out");
    touch(end);
    CHECK(cured.wait_exit() == 0);
    CHECK(cured.count_lines("^worker ") == 0);
    CHECK(a.wait_exit() == 0);
    CHECK(spare.wait_exit() == 0);
    CHECK(b.count_lines("^worker ") == 1);
    cluster.wait_all_gone();
}

TEST_CASE(
    "nodes that wait learn which one is not fit at first, and why; back again it is left out") {
    Cluster cluster;
    const FreePort port;
    const std::string end = cluster.dir() / "end";
    Job job;
    job.nnodes = "2:3";
    job.endpoint = port.endpoint();
    job.flags = {"--preflight-command", "test ! -e \"$FAULT\""};
    job.script = {"--print", "--always", "--wait-for-file", end, "--exit-code", "0"};
    const auto start = [&](const std::string& name) -> Process& {
        return cluster.start_ddprun(node_args(job, {"--node-id", name}),
                                    {{"FAULT", cluster.dir() / ("fault-" + name)}});
    };
    const std::string line = " is not fit \\(its preflight command exited with code 1\\)";
    touch(cluster.dir() / "fault-c");
    Process& a = start("a");
    a.wait_for_line("^ddprun: waiting for 1 node more");
    Process& early = start("c");
    CHECK(early.wait_exit() == 97);
    CHECK(early.count_lines("the preflight command exited with code 1: this node is not fit") == 1);
    a.wait_for_line("^ddprun: waiting for 1 node more: 1 of 2:3 here \\(.*\\); .*" + line);
    // The first generation begins without it, which its head says once more.
    Process& b = start("b");
    a.wait_for_line(place_in(1));
    b.wait_for_line(place_in(1));
    // The choice of the head depends on what else runs on this machine.
    Process& head = a.count_lines("^worker rank=0 ") == 1 ? a : b;
    head.wait_for_line("^ddprun: [^ ]*" + line + "$");
    // The head is told of one that comes while it runs, too.
    touch(cluster.dir() / "fault-d");
    Process& late = start("d");
    CHECK(late.wait_exit() == 97);
    head.wait_for_line("^ddprun: node .*" + line + ": left out for 600 s while others suffice");
    std::filesystem::remove(cluster.dir() / "fault-c");
    Process& cured = start("c");
    cured.wait_for_line("this one" + line + ", so it is left out");
    touch(end);
    CHECK(cured.wait_exit() == 0);
    CHECK(cured.count_lines("^worker ") == 0);
    CHECK(a.wait_exit() == 0);
    CHECK(b.wait_exit() == 0);
    CHECK(a.count_lines("^worker ") == 1);
    cluster.wait_all_gone();
}
