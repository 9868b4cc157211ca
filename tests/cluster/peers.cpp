// ddpctl doctor --peers, in networks of their own.

#include <string>

#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"
#include "tests/support/network_namespaces.hpp"
#include "tests/support/places.hpp"

using namespace ddprun::test;

namespace {

bool has_network() {
    const std::string why_not = Network::why_not();
    if (!why_not.empty()) {
        WARN("SKIPPED: " + why_not + "; no ways between nodes are tried");
    }
    return why_not.empty();
}

std::string all_three() {
    return Network::address(0) + "," + Network::address(1) + "," + Network::address(2);
}

Process& ask(Cluster& cluster, const Network& network, int node, const std::string& seconds) {
    StartOptions options;
    options.argv = {bin_dir() + "/ddpctl", "doctor", "--peers", all_three(), "--wait", seconds};
    options.name = "ddpctl of node " + std::to_string(node);
    return cluster.start(network.in(node, options));
}

}  // namespace

TEST_CASE("nodes that reach each other say so, as soon as all have tried all") {
    if (!has_network()) {
        return;
    }
    Cluster cluster;
    Network network(3);
    Process& a = ask(cluster, network, 0, "1000");
    Process& b = ask(cluster, network, 1, "1000");
    a.wait_for_line("ddpctl: 10.77.0.2 tries 2 other nodes at port 29400, for up to 1000 s");
    Process& c = ask(cluster, network, 2, "1000");
    for (Process* node : {&a, &b, &c}) {
        CHECK(node->wait_exit() == 0);
        CHECK(node->count_lines("^good +peers +.* and 2 other nodes reach each other, at port "
                                "29400 and at ports that kernels chose") == 1);
    }
}

TEST_CASE("a way that is closed in one direction is named by both of its ends") {
    if (!has_network()) {
        return;
    }
    Cluster cluster;
    Network network(3);
    network.close_to_others(1);
    Process& a = ask(cluster, network, 0, "5");
    Process& b = ask(cluster, network, 1, "5");
    Process& c = ask(cluster, network, 2, "5");
    for (Process* node : {&a, &b, &c}) {
        CHECK(node->wait_exit() == 1);
    }
    for (Process* node : {&a, &c}) {
        const std::string self = Network::address(node == &a ? 0 : 2);
        CHECK(node->count_lines("^bad +peers +" + self +
                                " cannot reach 10.77.0.3 .10.77.0.3. at "
                                "port 29400: nothing answered within 5 s") == 1);
        CHECK(node->count_lines("^bad +peers +" + self +
                                " cannot reach 10.77.0.3 .10.77.0.3. at "
                                "port [0-9]+, which its kernel chose: nothing answered") == 1);
        CHECK(node->count_lines("it runs there, and 10.77.0.3 is heard here: a firewall") == 2);
        CHECK(node->count_lines("^bad") == 2);
        CHECK(b.count_lines("^bad +peers +" + self + " has not reached 10.77.0.3 at port 29400") ==
              1);
    }
    CHECK(b.count_lines("^bad") == 2);
}

TEST_CASE("a node that does not take part, or whose cable is out, is named") {
    if (!has_network()) {
        return;
    }
    Cluster cluster;
    Network network(3);
    network.cut_one_way(2, Network::Way::ToNode);
    Process& a = ask(cluster, network, 0, "5");
    Process& c = ask(cluster, network, 2, "5");
    CHECK(a.wait_exit() == 1);
    CHECK(c.wait_exit() == 1);
    CHECK(a.count_lines("10.77.0.2 cannot reach 10.77.0.3 .* at port 29400: refused") == 1);
    CHECK(a.count_lines("10.77.0.2 cannot reach 10.77.0.4 .* at port 29400: nothing answered") ==
          1);
    CHECK(a.count_lines("does `ddpctl doctor --peers` run there, with the same list") == 2);
    CHECK(a.count_lines("^bad") == 2);
    CHECK(c.count_lines("^bad") == 2);
}

TEST_CASE("a list without this machine or without others, and none, are refused") {
    Cluster cluster;
    StartOptions options;
    options.argv = {bin_dir() + "/ddpctl", "doctor", "--peers", "192.0.2.77"};
    Process& stranger = cluster.start(options);
    CHECK(stranger.wait_exit() == 2);
    CHECK(stranger.count_lines("--peers 192.0.2.77: none of them has an address of this machine") ==
          1);
    options.argv = {bin_dir() + "/ddpctl", "doctor", "--peers", "127.0.0.1"};
    Process& alone = cluster.start(options);
    CHECK(alone.wait_exit() == 2);
    CHECK(alone.count_lines("--peers 127.0.0.1: that is this machine alone") == 1);
    options.argv = {bin_dir() + "/ddpctl", "doctor", "--peers"};
    Process& nobody = cluster.start(options);
    CHECK(nobody.wait_exit() == 2);
    CHECK(nobody.count_lines("nobody says which nodes; name them") == 1);
}
