// Real daemons and agents in network namespaces of their own, with cables pulled out and put back.

#include <string>
#include <vector>

#include "tests/cluster/network_job.hpp"
#include "tests/cluster/nodes.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"
#include "tests/support/network_namespaces.hpp"
#include "tests/support/places.hpp"

using namespace ddprun::test;

namespace {

bool has_network() {
    const std::string why_not = Network::why_not();
    if (!why_not.empty()) {
        WARN("SKIPPED: " + why_not + "; no cut network is tested");
    }
    return why_not.empty();
}

Process& start_node_in(Cluster& cluster, const Network& network, int node, const Job& job) {
    StartOptions options;
    options.argv = {bin_dir() + "/ddprun", "--log-dir", cluster.dir() / "logs"};
    const std::vector<std::string> args = node_args(job);
    options.argv.insert(options.argv.end(), args.begin(), args.end());
    options.name = "ddprun of node " + std::to_string(node);
    return cluster.start(network.in(node, options));
}

/// The daemon at the switch, where the nodes' cables end.
Cluster::Daemon start_daemon_at_switch(Cluster& cluster) {
    StartOptions options;
    options.argv = {bin_dir() + "/ddprun-rendezvous", "--listen", Network::switch_address() + ":0"};
    Process& process = cluster.start(options);
    const std::string line = process.wait_for_line("listening on ");
    return {process, line.substr(line.rfind(' ') + 1)};
}

/// Nodes 0 and 1 first, so that all three run in generation 2.
std::vector<Process*> start_three(Cluster& cluster, const Network& network, const Job& job) {
    std::vector<Process*> nodes;
    for (const int node : {0, 1}) {
        nodes.push_back(&start_node_in(cluster, network, node, job));
    }
    nodes[0]->wait_for_line(world_in(2, 1));
    nodes[1]->wait_for_line(world_in(2, 1));
    nodes.push_back(&start_node_in(cluster, network, 2, job));
    return nodes;
}

}  // namespace

TEST_CASE("a node whose cable is pulled out is declared dead and is fenced when it returns") {
    if (!has_network()) {
        return;
    }
    Cluster cluster;
    Network network(3);
    const Cluster::Daemon daemon = start_daemon_at_switch(cluster);
    const std::vector<Process*> nodes =
        start_three(cluster, network, watched_job(cluster, daemon.endpoint));
    live_without(
        daemon.process, cluster, nodes, [&] { network.cut(2); }, [&] { network.heal(2); });
    finish(cluster, nodes);
}

TEST_CASE("a node that is heard no more, or hears no more, is dealt with like a silent one") {
    if (!has_network()) {
        return;
    }
    const Network::Way way = GENERATE(Network::Way::FromNode, Network::Way::ToNode);
    Cluster cluster;
    Network network(3);
    const Cluster::Daemon daemon = start_daemon_at_switch(cluster);
    const std::vector<Process*> nodes =
        start_three(cluster, network, watched_job(cluster, daemon.endpoint));
    live_without(
        daemon.process, cluster, nodes, [&] { network.cut_one_way(2, way); },
        [&] { network.heal(2); });
    finish(cluster, nodes);
}

TEST_CASE("a daemon that is cut off from all nodes suspects itself, and nothing happens") {
    if (!has_network()) {
        return;
    }
    Cluster cluster;
    Network network(2);
    const Cluster::Daemon daemon = start_daemon_at_switch(cluster);
    Job job;
    job.endpoint = daemon.endpoint;
    job.script = {"--print", "--wait-for-file", cluster.dir() / "end"};
    std::vector<Process*> nodes;
    for (const int node : {0, 1}) {
        nodes.push_back(&start_node_in(cluster, network, node, job));
    }
    for (Process* node : nodes) {
        node->wait_for_line(world_in(2, 1));
    }
    network.cut(0);
    network.cut(1);
    daemon.process.wait_for_line("half of the nodes fell silent at once");
    network.heal(0);
    network.heal(1);
    finish(cluster, nodes);
    for (Process* node : nodes) {
        CHECK(node->count_lines(place_in(2)) == 0);
    }
    CHECK(daemon.process.count_lines("was silent for") == 0);
}

TEST_CASE("two nodes that lose each other meet again, and no verdict is given in between") {
    if (!has_network()) {
        return;
    }
    Cluster cluster;
    Network network(2);
    Job job;
    // No other process has the port in this network. The head starts the daemon.
    job.endpoint = Network::address(0) + ":29400";
    job.script = {"--exit-on-signal",   "15", "0", "--print", "--wait-for-file",
                  cluster.dir() / "end"};
    Process& head = start_node_in(cluster, network, 0, job);
    Process& other = start_node_in(cluster, network, 1, job);
    head.wait_for_line(world_in(2, 1));
    const std::string held = other.wait_for_line(world_in(2, 1));
    const ddprun::UniqueFd zombie = Cluster::watch(field(held, "pid"));
    network.cut(1);
    head.wait_for_line("waiting for 1 node more");
    network.heal(1);
    cluster.wait_gone(zombie);
    head.wait_for_line(world_in(2, 2));
    other.wait_for_line(world_in(2, 2));
    finish(cluster, {&head, &other});
    cluster.wait_all_gone();
}

TEST_CASE(
    "a node that is given another port says which one nobody answers, and how long it tries") {
    if (!has_network()) {
        return;
    }
    Cluster cluster;
    Network network(2);
    const Cluster::Daemon daemon = start_daemon_at_switch(cluster);
    Job job;
    job.endpoint = daemon.endpoint;
    job.script = {"--print"};
    Process& right = start_node_in(cluster, network, 0, job);
    right.wait_for_line("waiting for 1 node more");
    // No process listens on port 1, so a node cannot connect to it.
    job.endpoint = Network::switch_address() + ":1";
    Process& wrong = start_node_in(cluster, network, 1, job);
    wrong.wait_for_line(
        "cannot connect to the rendezvous at 10.77.0.1:1: Connection refused.* of 600 s");
}
