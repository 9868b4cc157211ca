#include "rendezvous/host/lobby.hpp"

#include "base/probe.hpp"

namespace ddprun::rdzv {

Lobby::Answer Lobby::arrives(ConnectionId connection, const Join& join) {
    if (can_send_on(join.unreachable) || waiting_.size() >= waiting_max_) {
        return Answer::SendOn;
    }
    if (!leader_.empty()) {
        DDP_PROBE(leader_cannot_be_reached);
    }
    waiting_[connection] = join;
    return Answer::Wait;
}

Lobby::Answer Lobby::arrives(const Unfit& unfit) const {
    return can_send_on(unfit.unreachable) ? Answer::SendOn : Answer::Wait;
}

std::vector<ConnectionId> Lobby::follow(const std::string& leader) {
    leader_ = leader;
    std::vector<ConnectionId> sent_on;
    if (leader_.empty()) {
        return sent_on;
    }
    for (const auto& [connection, join] : std::exchange(waiting_, {})) {
        DDP_PROBE(waited_for_a_leader);
        sent_on.push_back(connection);
    }
    return sent_on;
}

}  // namespace ddprun::rdzv
