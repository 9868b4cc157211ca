// One of several daemons: deciding, or sending agents to the one that does.
#include <utility>

#include "rendezvous/server/server.hpp"
#include "rendezvous/wire/codec.hpp"

namespace ddprun::rdzv {

void Server::lead(Journal& journal, const std::map<JobId, std::string>& records,
                  std::function<bool(Instant)> may_decide) {
    watched_.send_to(std::nullopt);
    jobs_.lead(journal, records, std::move(may_decide));
}

void Server::follow(const std::string& leader) {
    watched_.send_to(leader);
    jobs_.follow(leader);
}

bool Server::send_to_leader(Session& session) {
    const std::optional<std::string> leader = jobs_.host().leader();
    if (leader) {
        session.connection.send(encode(RendezvousMessage(Redirect{*leader})));
        session.connection.finish();
    }
    return leader.has_value();
}

}  // namespace ddprun::rdzv
