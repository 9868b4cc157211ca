#include "launcher/doctor/peers.hpp"

#include <utility>

#include <fmt/format.h>

namespace ddprun::launcher {

namespace {

constexpr std::string_view kPeersCheck = "peers";

Finding bad_way(std::string what, std::string todo) {
    return {kPeersCheck, CheckResult::Bad, std::move(what), std::move(todo)};
}

/// It runs, and something of it has arrived here.
bool is_heard(const PeerFacts& peer) {
    return peer.came_to_common || peer.came_to_chosen || peer.common.reach == Reach::Reached;
}

std::string reason(const WayTo& way, int waited_s) {
    switch (way.reach) {
        case Reach::Silent:
            return fmt::format("nothing answered within {} s", waited_s);
        case Reach::Refused:
            return "refused";
        case Reach::Failed:
            return way.why;
        case Reach::Reached:
        case Reach::NotTried:
            break;
    }
    return "not tried";
}

std::string advice(const PeersFacts& facts, const PeerFacts& peer, const WayTo& way,
                   const std::string& port) {
    const bool is_rejected = way.reach == Reach::Refused;
    if (!is_heard(peer)) {
        return fmt::format(
            "does `ddpctl doctor --peers` run there, with the same list? If it does, {} {}",
            is_rejected ? "a firewall rejects" : "a firewall or a missing route drops",
            fmt::format("TCP from {} to port {}", facts.self, port));
    }
    return fmt::format(
        "it runs there, and {} is heard here: a firewall of {} or on the way {} TCP to port {}; "
        "open it for the nodes of the job",
        peer.host, peer.host, is_rejected ? "rejects" : "drops", port);
}

void judge_way(const PeersFacts& facts, const PeerFacts& peer, const WayTo& way,
               const std::string& port, std::vector<Finding>& findings) {
    if (way.reach == Reach::Reached || way.reach == Reach::NotTried) {
        return;
    }
    findings.push_back(
        bad_way(fmt::format("{} cannot reach {} ({}) at port {}: {}", facts.self, peer.host,
                            peer.address, port, reason(way, facts.waited_s)),
                advice(facts, peer, way, port)));
}

/// Reports what `peer` could not do with us, but only if `peer` is known to have tried.
void judge_return(const PeersFacts& facts, const PeerFacts& peer, std::vector<Finding>& findings) {
    if (!is_heard(peer) || (peer.came_to_common && peer.came_to_chosen)) {
        return;
    }
    const std::string port = !peer.came_to_common ? fmt::format("port {}", facts.port)
                                                  : std::string("a port that the kernel chose");
    findings.push_back(bad_way(
        fmt::format("{} has not reached {} at {}", peer.host, facts.self, port),
        fmt::format("a firewall of {} or on the way drops it: what {} says of it names the port",
                    facts.self, peer.host)));
}

}  // namespace

std::vector<Finding> check_peers(const PeersFacts& facts) {
    std::vector<Finding> findings;
    if (!facts.port_taken.empty()) {
        findings.push_back(bad_way(facts.port_taken,
                                   "name another one on every node, --port N, or ask when no "
                                   "rendezvous runs here"));
        return findings;
    }
    for (const PeerFacts& peer : facts.peers) {
        if (peer.address.empty()) {
            findings.push_back(bad_way(
                fmt::format("{} cannot resolve {}", facts.self, peer.host),
                "every node must know the others' names: DNS, or /etc/hosts on each of them"));
            continue;
        }
        judge_way(facts, peer, peer.common, fmt::format("{}", facts.port), findings);
        judge_way(facts, peer, peer.chosen,
                  fmt::format("{}, which its kernel chose", peer.chosen_port), findings);
        judge_return(facts, peer, findings);
    }
    if (findings.empty()) {
        findings.push_back(
            {kPeersCheck,
             CheckResult::Good,
             fmt::format("{} and {} other node{} reach each other, at port {} and at ports "
                         "that kernels chose",
                         facts.self, facts.peers.size(), facts.peers.size() == 1 ? "" : "s",
                         facts.port),
             {}});
    }
    return findings;
}

}  // namespace ddprun::launcher
