// One of several daemons: deciding, or sending agents to the one that does.
#include <utility>

#include "rendezvous/server/server_impl.hpp"
#include "rendezvous/wire/codec.hpp"

namespace ddprun::rdzv {

void Server::Impl::lead(Journal& journal, const std::map<JobId, std::string>& records,
                        std::function<bool(Instant)> may_decide) {
    is_leading_ = true;
    jobs_->stop();
    store_.release();
    jobs_ = make_jobs(Durable{.journal = &journal, .is_strict = true}, std::move(may_decide));
    jobs_->restore(records);
    const std::map<ConnectionId, Join> parked = std::exchange(parked_, {});
    for (const auto& [id, message] : parked) {
        if (const auto found = sessions_.find(id); found != sessions_.end()) {
            join(*found->second, message);
        }
    }
}

void Server::Impl::follow(const std::string& leader) {
    const bool was_leading = std::exchange(is_leading_, false);
    leader_ = leader;
    jobs_->stop();
    store_.release();
    for (const auto& [id, session] : sessions_) {
        if (was_leading && session->job) {
            session->is_closed_by_job = true;
            session->connection->close();
        } else if (parked_.contains(id) && !leader_.empty()) {
            send_to_leader(*session);
        }
    }
    if (!leader_.empty()) {
        parked_.clear();
    }
}

/// Not to the one that the agent has just asked in vain.
bool Server::Impl::can_send_on(const std::string& unreachable) const {
    return !leader_.empty() && leader_ != unreachable;
}

void Server::Impl::send_to_leader(Session& session) {
    session.connection->send(encode(RendezvousMessage(Redirect{leader_})));
    session.connection->finish();
}

std::shared_ptr<Jobs> Server::Impl::make_jobs(Durable durable,
                                              std::function<bool(Instant)> may_decide) {
    return std::make_shared<Jobs>(io_, options_.limits, Rng(options_.rng.next()),
                                  make_hooks(std::move(may_decide)), durable,
                                  !options_.exits_when_idle);
}

}  // namespace ddprun::rdzv
