// --watch: deaths that are known before the dying process is gone.

#include <signal.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "agent/daemon/life_watch.hpp"
#include "agent/process/children.hpp"
#include "tests/cluster/nodes.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using ddprun::agent::LifeWatch;
using namespace ddprun::test;

namespace {

bool is_left_out() {
    if (LifeWatch::is_possible()) {
        return false;
    }
    WARN("SKIPPED: this kernel cannot wait for several futexes (before 5.16)");
    return true;
}

pid_t keeper_of(const Process& node) {
    for (const int child : ddprun::agent::children_of(node.pid())) {
        if (ddprun::agent::stat_of(child)->name == "ddprun-keeper") {
            return child;
        }
    }
    FAIL("no keeper below pid " << node.pid());
    return 0;
}

/// A worker runs before its keeper has told the agent so: that has been done once the keeper waits
/// for something else.
void wait_until_it_sleeps(pid_t pid) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (ddprun::agent::stat_of(pid)->state != 'S') {
        REQUIRE(std::chrono::steady_clock::now() < deadline);
        std::this_thread::yield();
    }
}

/// Two nodes with a worker each; the keeper of the one whose worker dies is stopped, so that no
/// process there can learn of the death from the worker itself.
void die_unseen_by_the_keeper(const std::vector<std::string>& flags,
                              const std::vector<std::string>& script) {
    Cluster cluster;
    const FreePort port;
    const std::string fail = cluster.dir() / "fail";
    Job job;
    job.endpoint = port.endpoint();
    job.flags = flags;
    job.flags.insert(job.flags.end(), {"--failure-grace", "0.1"});
    job.script = script;
    job.script.insert(job.script.end(),
                      {"--print", "--tell-signal", "15", "--when-rank", "1", "--wait-for-file",
                       fail, "--crash", "9", "--always", "--hang"});
    Process& first = start_node(cluster, job, {"--node-rank", "0"});
    Process& second = start_node(cluster, job, {"--node-rank", "1"});
    first.wait_for_line(place_in(1));
    second.wait_for_line(place_in(1));
    const pid_t keeper = keeper_of(second);
    wait_until_it_sleeps(keeper);
    REQUIRE(::kill(keeper, SIGSTOP) == 0);
    touch(fail);
    first.wait_for_line("got signal 15");
    REQUIRE(::kill(keeper, SIGCONT) == 0);
    CHECK(first.wait_exit() == 128 + SIGKILL);
    CHECK(second.wait_exit() == 128 + SIGKILL);
    cluster.wait_all_gone();
}

}  // namespace

TEST_CASE("with --watch preload a death is known without the process's parent") {
    if (is_left_out()) {
        return;
    }
    die_unseen_by_the_keeper({"--watch", "preload"}, {});
}

TEST_CASE("the death of a worker with the runtime is known without the process's parent") {
    if (is_left_out()) {
        return;
    }
    die_unseen_by_the_keeper({}, {"--attach-page"});
}

TEST_CASE("a preloaded worker ends as it does without the library, restarts too") {
    Cluster cluster;
    const std::vector<std::string> end = GENERATE(
        std::vector<std::string>{"--exit-code", "0"}, std::vector<std::string>{"--exit-code", "1"},
        std::vector<std::string>{"--exit-code", "255"}, std::vector<std::string>{"--crash", "9"},
        std::vector<std::string>{"--crash", "11"}, std::vector<std::string>{"--crash", "6"},
        std::vector<std::string>{"--crash", "15"});
    std::vector<std::string> args = {"--nproc-per-node", "2",         "--max-restarts",  "1",
                                     "--watch",          "preload",   Cluster::worker(), "--print",
                                     "--complain",       "last words"};
    args.insert(args.end(), end.begin(), end.end());
    Process& node = cluster.start_ddprun(args);
    const int number = std::stoi(end[1]);
    const bool is_crash = end[0] == "--crash";
    CHECK(node.wait_exit() == (is_crash ? 128 + number : number));
    CHECK(node.count_lines(place_in(2)) >= (number == 0 ? 0 : 1));
    CHECK((node.count_lines("^  [^ ]+ +[01]  .* last words$") > 0) == (number != 0));
    cluster.wait_all_gone();
}

TEST_CASE("what a user preloads stays preloaded, behind ddprun's library") {
    Cluster cluster;
    Process& node =
        cluster.start_ddprun({"--watch", "preload", Cluster::worker(), "--variable", "LD_PRELOAD"},
                             {{"LD_PRELOAD", "libm.so.6"}});
    CHECK(node.wait_exit() == 0);
    CHECK(node.count_lines("^LD_PRELOAD=/.*/ddprun-preload.so:libm.so.6$") == 1);
}

TEST_CASE("without --watch preload nothing is preloaded") {
    Cluster cluster;
    Process& node = cluster.start_ddprun({Cluster::worker(), "--variable", "LD_PRELOAD"});
    CHECK(node.wait_exit() == 0);
    CHECK(node.count_lines("ddprun-preload") == 0);
}
