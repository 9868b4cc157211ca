#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/limits.hpp"
#include "base/tagged.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::rdzv {

/// Agents at one of several daemons that does not lead: who is sent to the leader, and who waits
/// here until there is one. Pure.
class Lobby {
public:
    explicit Lobby(const Limits& limits) : waiting_max_(limits.parked_max) {}

    enum class Answer {
        SendOn,  ///< to leader()
        Wait,    ///< no word until a daemon leads
    };

    /// Never sends an agent to the daemon that it has just asked in vain.
    [[nodiscard]] Answer arrives(ConnectionId connection, const Join& join);
    /// One that is not fit does not wait here: without an answer it asks again.
    [[nodiscard]] Answer arrives(const Unfit& unfit) const;
    void ended(ConnectionId connection) { waiting_.erase(connection); }
    [[nodiscard]] bool is_waiting(ConnectionId connection) const {
        return waiting_.contains(connection);
    }

    /// `leader` leads now, or no daemon if empty. Returns the waiting agents to send there.
    [[nodiscard]] std::vector<ConnectionId> follow(const std::string& leader);
    /// This daemon leads now, and who has waited joins here.
    [[nodiscard]] std::map<ConnectionId, Join> take_all() { return std::exchange(waiting_, {}); }

    [[nodiscard]] const std::string& leader() const { return leader_; }

private:
    [[nodiscard]] bool can_send_on(const std::string& unreachable) const {
        return !leader_.empty() && leader_ != unreachable;
    }

    const std::size_t waiting_max_;
    std::string leader_;  ///< where agents reach it; empty: no leader is known
    std::map<ConnectionId, Join> waiting_;
};

}  // namespace ddprun::rdzv
