// How nodes find the endpoint: names that appear later, and names with several addresses. Each
// ddprun has a mount namespace of its own, in which /etc/hosts is a file of the test.

#include <signal.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "tests/cluster/nodes.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun::test;

namespace {

/// Runs a command with the hosts file $1 and no other source of names.
constexpr const char* kWithHosts =
    "mount --bind \"$1\" /etc/hosts && mount --bind \"$2\" /etc/nsswitch.conf && shift 2 && "
    "exec \"$@\"";

struct Names {
    explicit Names(Cluster& used) : cluster(used) {
        tell("");
        write_file(cluster.dir() / "nsswitch.conf", "hosts: files\n");
    }

    /// From now on the hosts file is this.
    void tell(const std::string& text) const { write_file(cluster.dir() / "hosts", text); }

    [[nodiscard]] StartOptions with(const std::vector<std::string>& argv) const {
        StartOptions options;
        options.argv = {"/usr/bin/unshare",
                        ::geteuid() == 0 ? "-m" : "-Urm",
                        "/bin/sh",
                        "-c",
                        kWithHosts,
                        "sh",
                        cluster.dir() / "hosts",
                        cluster.dir() / "nsswitch.conf"};
        options.argv.insert(options.argv.end(), argv.begin(), argv.end());
        options.name = "ddprun";
        return options;
    }

    Process& start(const Job& job) const {
        std::vector<std::string> argv = {Cluster::program("ddprun"), "--log-dir",
                                         cluster.dir() / "logs"};
        const std::vector<std::string> args = node_args(job);
        argv.insert(argv.end(), args.begin(), args.end());
        return cluster.start(with(argv));
    }

    [[nodiscard]] bool are_possible() const {
        Process& probe = cluster.start(with({"/bin/true"}));
        if (probe.wait_exit() == 0) {
            return true;
        }
        WARN("SKIPPED: no mount namespace here (" + probe.text() + "); no name is made up");
        return false;
    }

    Cluster& cluster;
};

}  // namespace

TEST_CASE("nodes wait for a name that is not there yet, and say so") {
    Cluster cluster;
    const Names names(cluster);
    if (!names.are_possible()) {
        return;
    }
    const FreePort port;
    Job job;
    job.endpoint = "head:" + std::to_string(port.port());
    job.script = {"--print"};
    Process& a = names.start(job);
    Process& b = names.start(job);
    for (Process* node : {&a, &b}) {
        node->wait_for_line(
            "cannot reach the rendezvous: the rendezvous host head cannot be resolved: .*; trying "
            "again; [0-9]+ s of 600 s \\(--rdzv-conf join_timeout\\)");
    }
    names.tell("127.0.0.1 head\n");
    for (Process* node : {&a, &b}) {
        CHECK(node->wait_exit() == 0);
        CHECK(node->count_lines("reached the rendezvous after [0-9]+ s") == 1);
        CHECK(node->count_lines("^worker .* world=2 ") == 1);
    }
    cluster.wait_all_gone();
}

TEST_CASE("a name that never appears ends the wait with its time") {
    Cluster cluster;
    const Names names(cluster);
    if (!names.are_possible()) {
        return;
    }
    Job job;
    job.endpoint = "head:29400";
    job.flags = {"--rdzv-conf", "join_timeout=1"};
    Process& node = names.start(job);
    CHECK(node.wait_exit() == 69);
    CHECK(node.count_lines("no rendezvous within 1 s \\(the rendezvous host head cannot be") == 1);
    cluster.wait_all_gone();
}

TEST_CASE("all addresses of a name are tried") {
    Cluster cluster;
    const Names names(cluster);
    if (!names.are_possible()) {
        return;
    }
    // The resolver answers with 127.0.0.1 first, where no process listens.
    Process& daemon =
        cluster.start({.argv = {Cluster::program("ddprun-rendezvous"), "--listen", "127.0.0.9:0"}});
    const std::string line = daemon.wait_for_line("listening on 127\\.0\\.0\\.9:[0-9]+");
    const std::string port = line.substr(line.rfind(':') + 1);
    names.tell("127.0.0.1 head\n127.0.0.9 head\n");
    Job job;
    job.script = {"--print"};
    job.endpoint = "127.0.0.9:" + port;
    Process& direct = start_node(cluster, job);
    job.endpoint = "head:" + port;
    Process& by_name = names.start(job);
    CHECK(direct.wait_exit() == 0);
    CHECK(by_name.wait_exit() == 0);
    daemon.signal(SIGTERM);
    CHECK(daemon.wait_exit() == 0);
    cluster.wait_all_gone();
}

TEST_CASE("nodes of one machine agree on who serves a name with several addresses") {
    Cluster cluster;
    const Names names(cluster);
    if (!names.are_possible()) {
        return;
    }
    const FreePort port;
    Job job;
    job.nnodes = "4";
    job.endpoint = "head:" + std::to_string(port.port());
    job.script = {"--print"};
    std::vector<Process*> nodes;
    for (int i = 0; i < 4; ++i) {
        names.tell(i % 2 == 0 ? "127.0.0.9 head\n127.0.0.1 head\n"
                              : "127.0.0.1 head\n127.0.0.9 head\n");
        nodes.push_back(&names.start(job));
    }
    for (Process* node : nodes) {
        CHECK(node->wait_exit() == 0);
        CHECK(node->count_lines("^worker .* world=4 ") == 1);
        CHECK(node->count_lines("warning: head:[0-9]+ is a loopback address: only nodes on this "
                                "machine can join") == 1);
    }
    cluster.wait_all_gone();
}
