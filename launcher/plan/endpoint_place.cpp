#include "launcher/plan/endpoint_place.hpp"

#include <algorithm>
#include <tuple>

#include <fmt/format.h>

namespace ddprun::launcher {

namespace {

constexpr const char* kOwnNameOnDebian = "127.0.1.1";

bool is_loopback(const rdzv::Endpoint& address) {
    return address.host.starts_with("127.") || address.host == "::1";
}

/// The same on every call, whatever the order in which a resolver answers; IPv4 first.
bool comes_first(const rdzv::Endpoint& a, const rdzv::Endpoint& b) {
    const auto is_ipv6 = [](const std::string& host) {
        return host.find(':') != std::string::npos;
    };
    return std::tuple(is_ipv6(a.host), a.host) < std::tuple(is_ipv6(b.host), b.host);
}

bool is_served_by_plan(const LaunchPlan& plan) {
    return plan.other_endpoints.empty();
}

bool lacks_certificate(const LaunchPlan& plan) {
    return plan.tls.is_on() && plan.tls.cert.empty();
}

}  // namespace

EndpointPlace place_endpoint(EndpointFacts facts) {
    EndpointPlace place{.addresses = std::move(facts.addresses)};
    const bool means_own_name =
        facts.endpoint.host != kOwnNameOnDebian && !place.addresses.empty() &&
        std::all_of(place.addresses.begin(), place.addresses.end(),
                    [](const rdzv::Endpoint& one) { return one.host == kOwnNameOnDebian; });
    if (means_own_name && !facts.outside.empty()) {
        place.addresses = {{facts.outside, facts.endpoint.port}};
        place.is_moved = true;
    }
    place.is_loopback = std::all_of(place.addresses.begin(), place.addresses.end(), is_loopback);
    for (const rdzv::Endpoint& address : place.addresses) {
        const bool is_own = is_loopback(address) ? place.is_loopback
                                                 : std::find(facts.own.begin(), facts.own.end(),
                                                             address.host) != facts.own.end();
        if (is_own && std::find(place.own.begin(), place.own.end(), address) == place.own.end()) {
            place.own.push_back(address);
        }
    }
    std::sort(place.own.begin(), place.own.end(), comes_first);
    std::stable_partition(
        place.addresses.begin(), place.addresses.end(),
        [&](const rdzv::Endpoint& address) { return place.is_loopback || !is_loopback(address); });
    return place;
}

bool may_serve(const LaunchPlan& plan, const EndpointPlace& place) {
    return !place.own.empty() && is_served_by_plan(plan) && !lacks_certificate(plan);
}

std::vector<std::string> endpoint_notes(const LaunchPlan& plan, const rdzv::Endpoint& endpoint,
                                        const EndpointPlace& place) {
    std::vector<std::string> notes;
    if (place.is_moved) {
        notes.push_back(
            fmt::format("{} means {} here, which no other machine can reach; using {} instead",
                        endpoint.host, kOwnNameOnDebian, place.addresses.front().host));
    }
    if (place.is_loopback && plan.identity().settings.max_nodes > 1) {
        notes.push_back(
            fmt::format("warning: {} is a loopback address: only nodes on this machine can join; "
                        "for others give an address that they can reach",
                        rdzv::to_string(endpoint)));
    }
    if (plan.is_insecure && !place.is_loopback) {
        notes.emplace_back("warning: --insecure: whoever reaches the endpoint can join");
    }
    if (!place.own.empty() && is_served_by_plan(plan) && lacks_certificate(plan)) {
        notes.emplace_back(
            "this machine owns the endpoint, but starts no rendezvous there without --tls-cert and "
            "--tls-key");
    }
    return notes;
}

}  // namespace ddprun::launcher
