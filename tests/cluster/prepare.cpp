// --prepare: what must be there before the first workers, whatever time it takes.

#include <signal.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/cluster/nodes.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun::test;

namespace {

/// Waits for `file` in the shell, without time.
std::string wait_for(const std::string& file) {
    return Cluster::worker() + " --wait-for-file " + file;
}

std::size_t lines_of(const std::string& file) {
    const std::string text = read_file(file);
    return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

/// Returns the prepare.log of every run that has one.
std::vector<std::string> prepare_logs(const Cluster& cluster) {
    std::vector<std::string> found;
    for (const auto& run : std::filesystem::directory_iterator(cluster.dir() / "logs")) {
        const std::string file = run.path().string() + "/prepare.log";
        if (!run.is_symlink() && std::filesystem::exists(file)) {
            found.push_back(read_file(file));
        }
    }
    return found;
}

}  // namespace

TEST_CASE("the prepare command runs once, before the workers, and is shown behind a prefix") {
    Cluster cluster;
    const std::string ran = cluster.dir() / "ran";
    Process& node =
        cluster.start_ddprun({"--max-restarts", "1", "--rdzv-id", "corpus", "--prepare",
                              "echo \"run=$TORCHELASTIC_RUN_ID rank=${RANK-none}\" >> " + ran +
                                  "; echo fetching; printf 'half\\rwhole' >&2",
                              Cluster::worker(), "--print", "--before-generation", "2",
                              "--exit-code", "3", "--always", "--exit-code", "0"});
    CHECK(node.wait_exit() == 0);
    CHECK(read_file(ran) == "run=corpus rank=none\n");
    CHECK(node.count_lines("^\\[prepare\\] fetching$") == 1);
    CHECK(node.count_lines("^\\[prepare\\] whole$") == 1);
    CHECK(node.count_lines("^worker .* generation=2 ") == 1);
    CHECK(node.text().find("fetching") < node.text().find("worker "));
    CHECK(prepare_logs(cluster) == std::vector<std::string>{"fetching\nhalf\rwhole"});
    cluster.wait_all_gone();
}

TEST_CASE("a prepare command that fails ends the job on every node with its exit code") {
    Cluster cluster;
    const FreePort port;
    const bool is_for_job = GENERATE(false, true);
    const std::string go = cluster.dir() / "go";
    const std::string fail = wait_for(go) + "; echo no disk >&2; exit 9";
    Job job;
    job.endpoint = port.endpoint();
    job.script = {"--print"};
    job.flags = {"--prepare",
                 is_for_job ? "job:" + fail : "test \"$GOOD\" = 0 || { " + fail + "; }"};
    Process& a = cluster.start_ddprun(node_args(job), {{"GOOD", "1"}});
    a.wait_for_line("runs the prepare command");
    Process& b = cluster.start_ddprun(node_args(job), {{"GOOD", "0"}});
    b.wait_for_line("waiting for the prepare command on .* of 2 ready");
    touch(go);
    CHECK(a.wait_exit() == 9);
    CHECK(b.wait_exit() == 9);
    CHECK(a.count_lines("^\\[.*prepare\\] no disk$") == 1);
    CHECK(prepare_logs(cluster) == std::vector<std::string>{"no disk\n"});
    CHECK(a.count_lines("the prepare command exited with code 9: no workers are started") == 1);
    CHECK(b.count_lines("failed: the prepare command on .* exited with code 9$") == 1);
    CHECK(a.count_lines("^worker ") + b.count_lines("^worker ") == 0);
    cluster.wait_all_gone();
}

TEST_CASE("nothing of a prepare command is left however ddprun ends meanwhile") {
    Cluster cluster;
    const int number = GENERATE(SIGINT, SIGTERM, SIGKILL);
    CAPTURE(number);
    Process& node = cluster.start_ddprun(
        {"--prepare", "setsid " + Cluster::worker() + " --ignore-sigterm --say alive --hang & wait",
         Cluster::worker()});
    node.wait_for_line("^\\[prepare\\] alive");
    node.signal(number);
    CHECK(node.wait_exit() == (number == SIGKILL ? -SIGKILL : 128 + number));
    cluster.wait_all_gone();
}

TEST_CASE("nodes wait for one that prepares, and say for whom") {
    Cluster cluster;
    const FreePort port;
    const std::string there = cluster.dir() / "there";
    Job job;
    job.nnodes = "1:2";
    job.endpoint = port.endpoint();
    job.flags = {"--prepare", "test \"$SLOW\" = 0 || " + wait_for(there)};
    job.script = {"--print"};
    Process& slow = cluster.start_ddprun(node_args(job), {{"SLOW", "1"}});
    slow.wait_for_line("runs the prepare command");
    // By itself it would start at once, with the minimum of nodes.
    Process& quick = cluster.start_ddprun(node_args(job), {{"SLOW", "0"}});
    quick.wait_for_line("waiting for the prepare command on .*: 1 node of 1:2 ready");
    slow.wait_for_line("waiting for the prepare command, which has run for");
    CHECK(quick.count_lines("^worker ") == 0);
    touch(there);
    CHECK(slow.wait_exit() == 0);
    CHECK(quick.wait_exit() == 0);
    CHECK(field(quick.wait_for_line("^worker "), "world") == 2);
    cluster.wait_all_gone();
}

TEST_CASE("a node that comes later prepares before it joins, and if it cannot the others go on") {
    Cluster cluster;
    const FreePort port;
    const std::string ran = cluster.dir() / "ran";
    const std::string end = cluster.dir() / "end";
    Job job;
    job.nnodes = "1:2";
    job.endpoint = port.endpoint();
    job.flags = {"--prepare", "echo x >> " + ran + "; exit $CODE"};
    job.script = {"--print",  "--exit-on-signal", "15", "0", "--before-generation", "2", "--hang",
                  "--always", "--wait-for-file",  end};
    Process& first = cluster.start_ddprun(node_args(job), {{"CODE", "0"}});
    first.wait_for_line(place_in(1));
    Process& bad = cluster.start_ddprun(node_args(job), {{"CODE", "7"}});
    CHECK(bad.wait_exit() == 7);
    Process& good = cluster.start_ddprun(node_args(job), {{"CODE", "0"}});
    good.wait_for_line(place_in(2));
    first.wait_for_line(place_in(2));
    touch(end);
    CHECK(first.wait_exit() == 0);
    CHECK(good.wait_exit() == 0);
    CHECK(lines_of(ran) == 3);
    cluster.wait_all_gone();
}

TEST_CASE("one node prepares for the job; if it dies another one does") {
    Cluster cluster;
    const FreePort port;
    const std::string ran = cluster.dir() / "ran";
    const std::string there = cluster.dir() / "there";
    Job job;
    job.nnodes = "2:3";
    job.endpoint = port.endpoint();
    job.flags = {"--prepare", "job:echo x >> " + ran + "; echo begun; " + wait_for(there)};
    job.script = {"--print"};
    const Cluster::Daemon daemon = cluster.start_daemon();
    job.endpoint = daemon.endpoint;
    const auto start = [&] { return &cluster.start_ddprun(node_args(job)); };
    Process* a = start();
    a->wait_for_line("^\\[.*prepare\\] begun");
    Process* b = start();
    b->wait_for_line("waiting for the prepare command on .*: 0 nodes of 2:3 ready");
    CHECK(lines_of(ran) == 1);
    a->signal(SIGKILL);
    CHECK(a->wait_exit() == -SIGKILL);
    b->wait_for_line("^\\[.*prepare\\] begun");
    Process* c = start();
    c->wait_for_line("waiting for the prepare command on ");
    touch(there);
    CHECK(b->wait_exit() == 0);
    CHECK(c->wait_exit() == 0);
    CHECK(lines_of(ran) == 2);
    CHECK(c->count_lines("begun") == 0);
}

TEST_CASE("what was done for the job is not done again when the rendezvous dies before workers") {
    Cluster cluster;
    const FreePort port;
    const std::string ran = cluster.dir() / "ran";
    const std::string state = cluster.dir() / "state";
    const auto start_daemon = [&] {
        Process& daemon = cluster.start({.argv = {Cluster::program("ddprun-rendezvous"), "--listen",
                                                  port.endpoint(), "--state-dir", state},
                                         .env = {},
                                         .cwd = {},
                                         .name = "daemon"});
        daemon.wait_for_line("^listening on ");
        return &daemon;
    };
    Process* daemon = start_daemon();
    Job job;
    job.endpoint = port.endpoint();
    job.flags = {"--prepare", "job:echo x >> " + ran};
    job.script = {"--print"};
    Process& a = start_node(cluster, job);
    a.wait_for_line("waiting for 1 node more");
    // It has waited for two seconds: who prepared for the job is in the journal.
    daemon->signal(SIGKILL);
    daemon->wait_exit();
    daemon = start_daemon();
    Process& b = start_node(cluster, job);
    CHECK(a.wait_exit() == 0);
    CHECK(b.wait_exit() == 0);
    CHECK(lines_of(ran) == 1);
    daemon->signal(SIGTERM);
    CHECK(daemon->wait_exit() == 0);
    cluster.wait_all_gone();
}
