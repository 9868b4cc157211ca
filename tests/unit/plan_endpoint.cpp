// Goal: whose machine an endpoint is. Method: what a resolver and the interfaces say, made up.

#include <string>
#include <vector>

#include "launcher/plan/endpoint_place.hpp"
#include "tests/support/catch.hpp"

namespace ddprun::launcher {
namespace {

EndpointPlace place_of(const std::string& host, const std::vector<std::string>& resolved) {
    EndpointFacts facts{.endpoint = {host, 29400},
                        .own = {"10.0.0.7", "127.0.0.1", "192.168.1.7", "::1", "fd00::7"},
                        .outside = "10.0.0.7"};
    for (const std::string& address : resolved) {
        facts.addresses.push_back({address, 29400});
    }
    return place_endpoint(std::move(facts));
}

std::vector<std::string> hosts_of(const std::vector<rdzv::Endpoint>& endpoints) {
    std::vector<std::string> hosts;
    for (const rdzv::Endpoint& endpoint : endpoints) {
        CHECK(endpoint.port == 29400);
        hosts.push_back(endpoint.host);
    }
    return hosts;
}

using Hosts = std::vector<std::string>;

TEST_CASE("all addresses of an endpoint are tried, and those of this machine are its own") {
    const EndpointPlace elsewhere = place_of("head", {"10.0.0.9", "fd00::9"});
    CHECK(hosts_of(elsewhere.addresses) == Hosts{"10.0.0.9", "fd00::9"});
    CHECK(elsewhere.own.empty());
    CHECK_FALSE(elsewhere.is_loopback);
    // The order of the answer does not change what is served: nodes of one machine agree on it.
    for (const Hosts& answer : {Hosts{"fd00::7", "10.0.0.7"}, Hosts{"10.0.0.7", "fd00::7"}}) {
        const EndpointPlace here = place_of("head", answer);
        CHECK(hosts_of(here.addresses) == answer);
        CHECK(hosts_of(here.own) == Hosts{"10.0.0.7", "fd00::7"});
    }
    CHECK(hosts_of(place_of("head", {"10.0.0.9", "192.168.1.7"}).own) == Hosts{"192.168.1.7"});
}

TEST_CASE("loopback is this machine's, unless the host has other addresses too") {
    const EndpointPlace local = place_of("localhost", {"::1", "127.0.0.1", "127.0.0.1"});
    CHECK(local.is_loopback);
    CHECK(hosts_of(local.own) == Hosts{"127.0.0.1", "::1"});
    CHECK(hosts_of(place_of("127.0.0.9", {"127.0.0.9"}).own) == Hosts{"127.0.0.9"});
    const EndpointPlace mixed = place_of("head", {"127.0.0.1", "10.0.0.9"});
    CHECK_FALSE(mixed.is_loopback);
    CHECK(mixed.own.empty());
    CHECK(hosts_of(mixed.addresses) == Hosts{"10.0.0.9", "127.0.0.1"});
}

TEST_CASE("Debian's entry for a machine's own name means the address that others reach") {
    const EndpointPlace moved = place_of("head", {"127.0.1.1"});
    CHECK(moved.is_moved);
    CHECK(hosts_of(moved.addresses) == Hosts{"10.0.0.7"});
    CHECK(hosts_of(moved.own) == Hosts{"10.0.0.7"});
    CHECK_FALSE(moved.is_loopback);
    CHECK_FALSE(place_of("127.0.1.1", {"127.0.1.1"}).is_moved);
}

TEST_CASE("what the user should know about an endpoint is said in a line each") {
    LaunchPlan plan;
    plan.identity().settings.max_nodes = 2;
    const rdzv::Endpoint head{"head", 29400};
    const EndpointPlace here = place_of("head", {"10.0.0.7"});
    CHECK(endpoint_notes(plan, head, here).empty());
    CHECK(may_serve(plan, here));
    CHECK_FALSE(may_serve(plan, place_of("head", {"10.0.0.9"})));
    const EndpointPlace loopback = place_of("localhost", {"127.0.0.1"});
    const std::string warning =
        "warning: head:29400 is a loopback address: only nodes on this machine can join; for "
        "others give an address that they can reach";
    CHECK(endpoint_notes(plan, head, loopback) == Hosts{warning});
    plan.identity().settings.max_nodes = 1;
    CHECK(endpoint_notes(plan, head, loopback).empty());
    plan.is_insecure = true;
    CHECK(endpoint_notes(plan, head, loopback).empty());
    CHECK(endpoint_notes(plan, head, here).size() == 1);
    plan.is_insecure = false;
    plan.tls.ca = "ca.pem";
    CHECK_FALSE(may_serve(plan, here));
    CHECK(endpoint_notes(plan, head, here) ==
          Hosts{"this machine owns the endpoint, but starts no rendezvous there without "
                "--tls-cert and --tls-key"});
    plan.tls = {};
    plan.other_endpoints = {{"other", 1}};
    CHECK_FALSE(may_serve(plan, here));
}

}  // namespace
}  // namespace ddprun::launcher
