#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launcher/doctor/checks.hpp"

namespace ddprun::launcher {

/// How one way to another node ended.
enum class Reach {
    Reached,
    NotTried,  ///< its port was never learned
    Silent,    ///< nothing answered
    Refused,
    Failed,  ///< otherwise, as `why` says
};

struct WayTo {
    Reach reach = Reach::NotTried;
    std::string why = {};  ///< of Failed
};

/// The facts that this node and another one have found out about each other.
struct PeerFacts {
    std::string host;
    std::string address;  ///< empty: `host` cannot be resolved here
    WayTo common;         ///< from here to the port that all use
    WayTo chosen;         ///< from here to one that its kernel chose, the next
    std::uint16_t chosen_port = 0;
    bool came_to_common = false;  ///< it has reached ours
    bool came_to_chosen = false;
};

struct PeersFacts {
    std::string self;             ///< as the list names this node
    std::uint16_t port = 0;       ///< that all use
    std::string port_taken = {};  ///< why this node could not listen on it; empty: it did
    std::vector<PeerFacts> peers;
    int waited_s = 0;
};

/// One finding for each thing that is wrong, or one good one. Pure.
[[nodiscard]] std::vector<Finding> check_peers(const PeersFacts& facts);

}  // namespace ddprun::launcher
