// One of several daemons: deciding, or sending agents to the one that does.
#include <utility>

#include "rendezvous/server/server_impl.hpp"
#include "rendezvous/wire/codec.hpp"

namespace ddprun::rdzv {

void Server::Impl::lead(Journal& journal, const std::map<JobId, std::string>& records,
                        std::function<bool(Instant)> may_decide) {
    std::map<ConnectionId, Join> waited;
    if (lobby_) {
        waited = lobby_->take_all();
        lobby_.reset();
    }
    jobs_->stop();
    store_.release();
    jobs_ = make_jobs(Durable{.journal = &journal, .is_strict = true}, std::move(may_decide));
    jobs_->restore(records);
    for (const auto& [id, message] : waited) {
        if (const auto found = sessions_.find(id); found != sessions_.end()) {
            join(found->second, message);
        }
    }
}

void Server::Impl::follow(const std::string& leader) {
    jobs_->stop();
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

void Server::Impl::send_to_leader(Session& session) {
    session.connection.send(encode(RendezvousMessage(Redirect{lobby_->leader()})));
    session.connection.finish();
}

std::shared_ptr<Jobs> Server::Impl::make_jobs(Durable durable,
                                              std::function<bool(Instant)> may_decide) {
    return std::make_shared<Jobs>(io_, options_.limits, Rng(options_.rng.next()),
                                  make_hooks(std::move(may_decide)), durable,
                                  !options_.exits_when_idle);
}

}  // namespace ddprun::rdzv
