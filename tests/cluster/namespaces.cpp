// --containment pid-namespace: the keeper is the first process of a PID namespace, as root and as
// a user without privileges.

#include <signal.h>
#include <sys/types.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "tests/cluster/plain_user.hpp"
#include "tests/cluster/proc.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun::test;

namespace {

/// How often ddprun and its keeper are killed; $DDPRUN_KILLS of the others' tests, of which this is
/// a tenth.
int cycles() {
    const char* wanted = std::getenv("DDPRUN_KILLS");
    return wanted == nullptr ? 20 : std::max(std::atoi(wanted) / 10, 1);
}

StartOptions program(std::vector<std::string> argv) {
    return {.argv = std::move(argv), .env = {}, .cwd = {}, .name = {}};
}

/// True if unshare(1), a program that is not ours, can make them.
bool has_namespaces() {
    Cluster cluster;
    Process& trial = cluster.start(program(
        {"/usr/bin/unshare", "--map-root-user", "--pid", "--fork", "--mount-proc", "/bin/true"}));
    if (trial.wait_exit() == 0) {
        return true;
    }
    WARN("SKIPPED: no user and PID namespaces can be made here");
    return false;
}

/// The processes of that name below this test, by the numbers that this test knows.
std::vector<pid_t> named(const std::string& name) {
    std::vector<pid_t> found;
    for (const pid_t pid : descendants()) {
        if (read_file("/proc/" + std::to_string(pid) + "/comm") == name + "\n") {
            found.push_back(pid);
        }
    }
    return found;
}

pid_t keeper() {
    const std::vector<pid_t> found = named("ddprun-keeper");
    REQUIRE(found.size() == 1);
    return found[0];
}

/// ddprun in a user namespace in which `sh -c script` comes first; "$@" there is ddprun.
StartOptions ddprun_after(const Cluster& cluster, const std::string& script) {
    return program({"/usr/bin/unshare", "--map-root-user", "--mount", "/bin/sh", "-c", script, "sh",
                    Cluster::program("ddprun"), "--log-dir", cluster.dir() / "logs",
                    "--containment", "pid-namespace", Cluster::worker(), "--print"});
}

}  // namespace

TEST_CASE("nobody survives ddprun and a keeper in a PID namespace that die in one instant") {
    if (!has_namespaces()) {
        return;
    }
    Cluster cluster;
    const bool is_plain = GENERATE(false, true);
    PlainUser user(cluster);
    for (int cycle = 0; cycle < cycles(); ++cycle) {
        const std::vector<std::string> args = {"--log-dir",
                                               cluster.dir() / "logs",
                                               "--containment",
                                               "pid-namespace",
                                               "--nproc-per-node",
                                               "2",
                                               is_plain ? user.worker() : Cluster::worker(),
                                               "--ignore-sigterm",
                                               "--daemonize",
                                               "--hang"};
        Process& node = is_plain ? user.start("ddprun", args) : cluster.start_ddprun(args);
        node.wait_for_lines("^descendant ", 2);
        const pid_t held = keeper();
        const ddprun::UniqueFd watched = Cluster::watch(held);
        REQUIRE(::kill(held, SIGSTOP) == 0);
        node.signal(SIGSTOP);
        REQUIRE(::kill(held, SIGKILL) == 0);
        node.signal(SIGKILL);
        CHECK(node.wait_exit() == -SIGKILL);
        cluster.wait_gone(watched);
        cluster.wait_all_gone();
    }
}

TEST_CASE("a keeper in a PID namespace that is killed is replaced, and the job goes on") {
    if (!has_namespaces()) {
        return;
    }
    Cluster cluster;
    Process& node = cluster.start_ddprun({"--containment", "pid-namespace", "--max-restarts", "1",
                                          Cluster::worker(), "--print", "--attach-page",
                                          "--before-generation", "2", "--daemonize", "--hang"});
    node.wait_for_line("^descendant ");
    REQUIRE(::kill(keeper(), SIGKILL) == 0);
    CHECK(node.wait_exit() == 0);
    CHECK(node.count_lines(place_in(2)) == 1);
    CHECK(node.count_lines("^attached ") == 2);
    cluster.wait_all_gone();
}

TEST_CASE("workers in a PID namespace look at the page and are reported by their outer numbers") {
    if (!has_namespaces()) {
        return;
    }
    Cluster cluster;
    PlainUser user(cluster);
    const bool is_plain = GENERATE(false, true);
    const std::vector<std::string> args = {"--log-dir",
                                           cluster.dir() / "logs",
                                           "--containment",
                                           "pid-namespace",
                                           is_plain ? user.worker() : Cluster::worker(),
                                           "--print",
                                           "--tell-signal",
                                           "15",
                                           "--tell-signal",
                                           "10",
                                           "--attach-page",
                                           "--progress",
                                           "4812",
                                           "--say",
                                           "progress told",
                                           "--leave-when-asked"};
    Process& node = is_plain ? user.start("ddprun", args) : cluster.start_ddprun(args);
    node.wait_for_line("^progress told$");
    SECTION("a signal that is passed on, and a drain") {
        node.signal(SIGUSR1);
        node.wait_for_line("^got signal 10$");
        node.signal(SIGTERM);
        CHECK(node.wait_exit() == 128 + SIGTERM);
        CHECK(node.count_lines("^asked signal=15$") == 1);
        CHECK(node.count_lines("^got signal 15$") == 0);
    }
    SECTION("a failure") {
        const std::vector<pid_t> workers = named("ddprun_test_wor");
        REQUIRE(workers.size() == 1);
        CHECK(field(node.wait_for_line("^worker "), "pid") != workers[0]);
        REQUIRE(::kill(workers[0], SIGSEGV) == 0);
        CHECK(node.wait_exit() == 128 + SIGSEGV);
        CHECK(node.count_lines("pid " + std::to_string(workers[0]) + "\\b") == 1);
        CHECK(node.count_lines("^  last step  4812$") == 1);
    }
    cluster.wait_all_gone();
}

TEST_CASE("the stacks of workers in a PID namespace are saved by their outer numbers") {
    if (!has_namespaces()) {
        return;
    }
    Cluster cluster;
    Process& node =
        cluster.start_ddprun({"--containment", "pid-namespace", "--hang-timeout", "1", "--rdzv-id",
                              "job", Cluster::worker(), "--print", "--hang"},
                             {{"PATH", "/nonexistent"}});
    node.wait_for_line("^worker ");
    const std::vector<pid_t> workers = named("ddprun_test_wor");
    REQUIRE(workers.size() == 1);
    const std::string line = node.wait_for_line("^  stacks     /");
    CHECK(node.wait_exit() == 94);
    const std::string text = read_file(line.substr(line.find('/')) + "/rank0.txt");
    CAPTURE(text);
    CHECK(text.find("rank 0, process " + std::to_string(workers[0]) + "\n") == 0);
    CHECK(text.find(" ddprun_test_wor, state S") != std::string::npos);
    cluster.wait_all_gone();
}

TEST_CASE("where no PID namespace can be had nothing starts, and one line says what is missing") {
    if (!has_namespaces()) {
        return;
    }
    Cluster cluster;
    // The test also takes from root the capability that would do without a user namespace.
    const std::string dropped =
        "exec setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin -- \"$@\"";
    SECTION("user namespaces are forbidden") {
        Process& node = cluster.start(
            ddprun_after(cluster, "echo 0 >/proc/sys/user/max_user_namespaces; " + dropped));
        CHECK(node.wait_exit() != 0);
        INFO(node.text());
        CHECK(node.line_count() == 1);
        CHECK(node.count_lines("^ddprun: containment C2 \\(pid-namespace\\) cannot be had: no PID "
                               "namespace can be made: user.max_user_namespaces is 0: ") == 1);
    }
    SECTION("a part of /proc is hidden") {
        Process& node =
            cluster.start(ddprun_after(cluster,
                                       "mount --bind /dev/null /proc/version; exec unshare "
                                       "--map-root-user --mount -- \"$@\""));
        CHECK(node.wait_exit() != 0);
        INFO(node.text());
        CHECK(node.line_count() == 1);
        CHECK(
            node.count_lines("^ddprun: containment C2 \\(pid-namespace\\) cannot be had: .* /proc "
                             "of its own here; .*procMount: Unmasked\\): Operation not "
                             "permitted") == 1);
    }
    cluster.wait_all_gone();
}

TEST_CASE("the PID namespace is told by --dry-run, doctor and status") {
    if (!has_namespaces()) {
        return;
    }
    Cluster cluster;
    Process& plan = cluster.start_ddprun({"--containment", "pid-namespace", "--dry-run", "true"});
    CHECK(plan.wait_exit() == 0);
    CHECK(plan.count_lines("contained by C2 \\(pid-namespace\\)$") == 1);
    Process& doctor = cluster.start(program({Cluster::program("ddpctl"), "doctor"}));
    doctor.wait_exit();
    CHECK(doctor.count_lines("--containment pid-namespace can be had") == 1);

    const FreePort port;
    Job job;
    job.nnodes = "1";
    job.endpoint = port.endpoint();
    job.flags = {"--containment", "pid-namespace"};
    job.script = {"--print", "--wait-for-file", cluster.dir() / "end"};
    Process& node = start_node(cluster, job);
    node.wait_for_line(place_in(1));
    Process& status = cluster.start(
        program({Cluster::program("ddpctl"), "status", "--json", "--rdzv-endpoint", job.endpoint}));
    CHECK(status.wait_exit() == 0);
    CHECK(status.count_lines("\"containment\": ?\"pid-namespace\"") == 1);
    touch(cluster.dir() / "end");
    CHECK(node.wait_exit() == 0);
    cluster.wait_all_gone();
}
