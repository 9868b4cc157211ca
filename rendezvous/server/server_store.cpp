// The store on the daemon's port: who gets there, and who is told what it says.
#include <utility>

#include <boost/asio/post.hpp>

#include "rendezvous/core/run.hpp"
#include "rendezvous/server/server.hpp"
#include "rendezvous/wire/codec.hpp"

namespace ddprun::rdzv {

/// On the store's thread.
StoreServer::Say Server::store_say() {
    return [this](std::string line) {
        boost::asio::post(io_, [this, line = std::move(line)] { tell_first_node(line); });
    };
}

void Server::expect_store_clients() {
    half_open_.expect(store_.clients_expected());
    room_.cancel();
}

void Server::hand_to_store(UniqueFd client) {
    if (store_.is_served()) {
        store_.adopt(std::move(client));
        return;
    }
    refuse(peer_name(client.get()),
           "it speaks PyTorch's TCPStore, which is not served here now; for torchrun start the "
           "rendezvous with --serve-tcpstore, for workers of a job its nodes with --store daemon");
}

/// On the console of group rank 0's node, as an agent's store does.
void Server::tell_first_node(const std::string& line) {
    log(line);
    const JobId* const job = jobs_.host().job_on_port();
    const Run* const run = job == nullptr ? nullptr : jobs_.host().run(*job);
    if (run == nullptr || run->current.places.empty()) {
        return;
    }
    const auto node = run->nodes.find(run->current.places.front().node);
    if (node == run->nodes.end() || !node->second.connection()) {
        return;
    }
    if (const auto found = sessions_.find(*node->second.connection()); found != sessions_.end()) {
        found->second.connection.send(encode(RendezvousMessage(Notice{line})));
    }
}

}  // namespace ddprun::rdzv
