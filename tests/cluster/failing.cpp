// Deaths of workers, keepers and agents, and what a run makes of them.

#include <signal.h>
#include <sys/types.h>

#include <regex>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/cluster/nodes.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun::test;
using nlohmann::json;

namespace {

bool has(const std::string& text, const std::string& pattern) {
    return std::regex_search(text, std::regex(pattern));
}

}  // namespace

TEST_CASE("without restarts every node exits with the failed worker's code and one report") {
    Cluster cluster;
    const FreePort port;
    Job job;
    job.slots = 2;
    job.endpoint = port.endpoint();
    const std::string fail = cluster.dir() / "fail";
    job.script = {"--print",
                  "--when-rank",
                  "3",
                  "--wait-for-file",
                  fail,
                  "--complain",
                  "these are my last words",
                  "--exit-code",
                  "17",
                  "--always",
                  "--hang"};
    Process& a = start_node(cluster, job);
    Process& b = start_node(cluster, job);
    a.wait_for_lines(place_in(1), 2);
    b.wait_for_lines(place_in(1), 2);
    touch(fail);
    for (Process* node : {&a, &b}) {
        CHECK(node->wait_exit() == 17);
        CHECK(node->count_lines("rank 3 on .* exited with code 17") >= 1);
        // On the console of its own node it has been shown, and is not repeated.
        const bool is_here = node->count_lines("^(\\[.*\\] )?these are my last words$") == 1;
        CHECK(node->count_lines("^    \\| these are my last words$") == (is_here ? 0 : 1));
        CHECK(node->count_lines("^  host +rank  end +time +cause$") == 1);
        CHECK(node->count_lines("^  [^ ]+ +3  exit code 17  [0-9:]{8} +\\+[0-9.]+ s  these are "
                                "my last words$") == 1);
        CHECK(node->count_lines("^worker ") == 2);
    }
    cluster.wait_all_gone();
}

TEST_CASE("a worker killed by a signal makes a new generation, which finishes") {
    Cluster cluster;
    const FreePort port;
    Job job;
    job.endpoint = port.endpoint();
    job.flags = {"--max-restarts", "1"};
    job.script = {"--print", "--before-generation", "2", "--hang"};
    Process& a = start_node(cluster, job);
    Process& b = start_node(cluster, job);
    const std::string line = a.wait_for_line(place_in(1));
    b.wait_for_line(place_in(1));
    REQUIRE(::kill(field(line, "pid"), SIGKILL) == 0);
    CHECK(a.wait_exit() == 0);
    CHECK(b.wait_exit() == 0);
    CHECK(a.count_lines("^worker .* world=2 .* generation=2 restarts=1 max_restarts=1 ") == 1);
    CHECK(b.count_lines("^worker .* world=2 .* generation=2 restarts=1 max_restarts=1 ") == 1);
    CHECK(field(a.wait_for_line(place_in(2)), "rank") == field(line, "rank"));
    cluster.wait_all_gone();
}

TEST_CASE(
    "a restart that is survived is told on every node, and in the report, with its evidence") {
    Cluster cluster;
    const FreePort port;
    Job job;
    job.endpoint = port.endpoint();
    job.flags = {"--max-restarts", "1"};
    job.script = {"--before-generation",
                  "2",
                  "--when-rank",
                  "1",
                  "--say",
                  "beside it",
                  "--complain",
                  "ValueError: boom",
                  "--exit-code",
                  "3",
                  "--before-generation",
                  "2",
                  "--hang"};
    Process& a = start_node(cluster, job);
    Process& b = start_node(cluster, job);
    for (Process* node : {&a, &b}) {
        CHECK(node->wait_exit() == 0);
        CHECK(node->count_lines("^ddprun: generation 2: .*; rank 1 on [^ ]+ exited with code 3: "
                                "ValueError: boom; logs in /.*/attempt_0/0$") == 1);
        CHECK(node->count_lines("^  [0-9:]{8} +\\+[0-9.]+ s  rank 1 on [^ ]+ exited with code 3: "
                                "ValueError: boom; logs in /.*/attempt_0/0$") == 1);
        CHECK(node->count_lines("^  run  +[0-9-]{10} [0-9:]{8} to ") == 1);
    }
    cluster.wait_all_gone();
}

TEST_CASE("the same failure thrice before any step is said once, and every restart comes") {
    Cluster cluster;
    Process& node =
        cluster.start_ddprun({"--max-restarts", "4", Cluster::worker(), "--complain",
                              "ModuleNotFoundError: No module named 'x'", "--exit-code", "1"});
    CHECK(node.wait_exit() == 1);
    CHECK(node.count_lines("^ddprun: the last 3 failures are the same \\(exited with code 1: "
                           "ModuleNotFoundError: No module named 'x'\\)") == 1);
    CHECK(node.count_lines("^ddprun: generation 5: ") == 1);
    cluster.wait_all_gone();
}

TEST_CASE("the end of a job is told with its cause, to people and to programs, on every node") {
    Cluster cluster;
    const FreePort port;
    Job job;
    job.slots = 2;
    job.endpoint = port.endpoint();
    job.script = {"--when-rank", "2", "--complain", "ModuleNotFoundError: No module named 'torch'",
                  "--exit-code", "1", "--always",   "--hang"};
    const std::string end =
        "rank 2 on [^ ]+ exited with code 1: ModuleNotFoundError: No module named 'torch'";
    std::vector<std::pair<Process*, std::string>> nodes;
    for (const char* name : {"a", "b"}) {
        const std::string logs = cluster.dir() / name;
        nodes.emplace_back(&cluster.start_ddprun(node_args(job, {"--log-dir", logs}),
                                                 {{"TORCHELASTIC_ERROR_FILE", logs + ".error"}}),
                           logs);
    }
    for (const auto& [node, logs] : nodes) {
        CHECK(node->wait_exit() == 1);
        const json report = json::parse(read_file(logs + "/latest/report.json"));
        INFO(node->text() << report.dump(1));
        CHECK(node->count_lines("^ddprun_test_worker failed: " + end + "$") == 1);
        CHECK(node->count_lines("^  [0-9:]{8} +\\+[0-9.]+ s  " + end + "$") == 1);
        CHECK(has(report["text"], "^" + end + "$"));
        CHECK(has(report["timeline"].back()["text"], "^closed: " + end + "$"));
        const json error = json::parse(read_file(logs + ".error"));
        CHECK(has(error["message"]["message"], "^" + end + "$"));
    }
    cluster.wait_all_gone();
}

TEST_CASE("a worker that says everything on stdout has last words, and when is told") {
    Cluster cluster;
    Process& node = cluster.start_ddprun(
        {Cluster::worker(), "--say", "ERROR: no such data set", "--exit-code", "1"});
    CHECK(node.wait_exit() == 1);
    // stdout is another pipe than stderr, where the report is.
    CHECK(node.count_lines("^    \\| ERROR: no such data set$") == 1);
    CHECK(node.count_lines("^  [^ ]+ +0  exit code 1  [0-9:]{8} +\\+[0-9.]+ s  last on stdout: "
                           "ERROR: no such data set$") == 1);
}

TEST_CASE("once the budget is used up the exit code is 128 plus the signal") {
    Cluster cluster;
    const FreePort port;
    Job job;
    job.endpoint = port.endpoint();
    job.flags = {"--max-restarts", "2"};
    job.script = {"--print",  "--when-rank", "0", "--crash", std::to_string(SIGUSR1),
                  "--always", "--hang"};
    Process& a = start_node(cluster, job, {"--node-rank", "0"});
    Process& b = start_node(cluster, job, {"--node-rank", "1"});
    for (Process* node : {&a, &b}) {
        CHECK(node->wait_exit() == 128 + SIGUSR1);
        CHECK(node->count_lines("rank 0 on .* was killed by SIGUSR1") >= 1);
        CHECK(node->count_lines("^worker .* generation=[4-9]") == 0);
    }
    for (int generation = 1; generation <= 3; ++generation) {
        CHECK(a.count_lines(place_in(generation)) == 1);
    }
    cluster.wait_all_gone();
}

TEST_CASE("an early exit 0 is no event, and a later failure restarts all ranks") {
    Cluster cluster;
    const FreePort port;
    Job job;
    job.endpoint = port.endpoint();
    job.flags = {"--max-restarts", "1"};
    const std::string go = cluster.dir() / "go";
    const std::string leave = cluster.dir() / "leave";
    job.script = {"--print",
                  "--when-generation",
                  "1",
                  "--when-rank",
                  "0",
                  "--wait-for-file",
                  leave,
                  "--exit-code",
                  "0",
                  "--always",
                  "--when-generation",
                  "1",
                  "--wait-for-file",
                  go,
                  "--exit-code",
                  "5"};
    Process& a = start_node(cluster, job, {"--node-rank", "0"});
    Process& b = start_node(cluster, job, {"--node-rank", "1"});
    const std::string line = a.wait_for_line(place_in(1));
    REQUIRE(line.find(" rank=0 ") != std::string::npos);
    const ddprun::UniqueFd early = Cluster::watch(field(line, "pid"));
    touch(leave);
    cluster.wait_gone(early);
    CHECK(a.is_running());
    b.wait_for_line(place_in(1));
    touch(go);
    CHECK(a.wait_exit() == 0);
    CHECK(b.wait_exit() == 0);
    CHECK(a.count_lines(place_in(2)) == 1);
    CHECK(b.count_lines(place_in(2)) == 1);
    cluster.wait_all_gone();
}

TEST_CASE("a killed keeper takes its workers with it, and the node goes on with another") {
    Cluster cluster;
    const FreePort port;
    Job job;
    job.slots = 2;
    job.endpoint = port.endpoint();
    job.flags = {"--max-restarts", "1"};
    job.script = {"--print", "--before-generation", "2", "--daemonize", "--hang"};
    Process& a = start_node(cluster, job);
    Process& b = start_node(cluster, job);
    a.wait_for_lines("^descendant ", 2);
    b.wait_for_lines("^descendant ", 2);
    const std::string line = a.wait_for_line(place_in(1));
    const ddprun::UniqueFd worker = Cluster::watch(field(line, "pid"));
    const ddprun::UniqueFd descendant =
        Cluster::watch(field(a.wait_for_line("^descendant "), "pid"));
    REQUIRE(::kill(field(line, "parent"), SIGKILL) == 0);
    cluster.wait_gone(worker);
    cluster.wait_gone(descendant);
    CHECK(a.wait_exit() == 0);
    CHECK(b.wait_exit() == 0);
    CHECK(a.count_lines(place_in(2)) == 2);
    CHECK(b.count_lines(place_in(2)) == 2);
    cluster.wait_all_gone();
}

TEST_CASE("nothing survives an agent that is killed") {
    Cluster cluster;
    Process& node = cluster.start_ddprun({"--nproc-per-node", "4", Cluster::worker(), "--print",
                                          "--ignore-sigterm", "--daemonize", "--hang"});
    node.wait_for_lines("^descendant ", 4);
    node.signal(SIGKILL);
    CHECK(node.wait_exit() == -SIGKILL);
    cluster.wait_all_gone();
}

TEST_CASE("a daemonised descendant does not outlive its generation") {
    Cluster cluster;
    Process& node = cluster.start_ddprun({"--nproc-per-node", "2", "--max-restarts", "1",
                                          Cluster::worker(), "--print", "--when-generation", "1",
                                          "--daemonize", "--when-rank", "1", "--exit-code", "2"});
    CHECK(node.wait_exit() == 0);
    CHECK(node.count_lines(place_in(2)) == 2);
    cluster.wait_all_gone();
}

TEST_CASE("a worker that ignores SIGTERM is killed after the grace") {
    Cluster cluster;
    Process& node = cluster.start_ddprun(
        {"--nproc-per-node", "2", "--failure-grace", "0.1", Cluster::worker(), "--ignore-sigterm",
         "--say", "ready", "--when-rank", "1", "--wait-for-file", cluster.dir() / "fail",
         "--exit-code", "9", "--always", "--hang"});
    node.wait_for_lines("^ready", 2);
    touch(cluster.dir() / "fail");
    CHECK(node.wait_exit() == 9);
    cluster.wait_all_gone();
}
