// One of several daemons: deciding, or sending agents to the one that does.
#include <utility>

#include "rendezvous/server/server.hpp"
#include "rendezvous/wire/codec.hpp"

namespace ddprun::rdzv {

void Server::lead(Journal& journal, const std::map<JobId, std::string>& records,
                  std::function<bool(Instant)> may_decide) {
    std::map<ConnectionId, Join> waited;
    if (lobby_) {
        waited = lobby_->take_all();
        lobby_.reset();
    }
    store_.release();
    watched_.send_to(std::nullopt);
    jobs_.begin(Durable{.journal = &journal, .is_strict = true}, std::move(may_decide), records);
    for (const auto& [id, message] : waited) {
        if (const auto found = sessions_.find(id); found != sessions_.end()) {
            join(found->second, message);
        }
    }
}

void Server::follow(const std::string& leader) {
    watched_.send_to(leader);
    jobs_.stop();
    store_.release();
    if (!lobby_) {
        lobby_.emplace(options_.limits);
        for (auto& [id, session] : sessions_) {
            if (session.job() != nullptr) {
                session.state = Session::Dismissed{};
                session.connection.close();
            }
        }
    }
    for (const ConnectionId id : lobby_->follow(leader)) {
        if (const auto found = sessions_.find(id); found != sessions_.end()) {
            send_to_leader(found->second);
        }
    }
}

void Server::send_to_leader(Session& session) {
    session.connection.send(encode(RendezvousMessage(Redirect{lobby_->leader()})));
    session.connection.finish();
}

}  // namespace ddprun::rdzv
