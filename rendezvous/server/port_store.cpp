#include "rendezvous/server/port_store.hpp"

#include <utility>

namespace ddprun::rdzv {

PortStore::PortStore(const Limits& limits, StoreServer::Say say)
    : clients_max_(limits.store_clients_max), server_(limits, std::move(say)) {}

void PortStore::serve_everybody() {
    state_ = ForEverybody{};
    server_.serve_adopted({});
}

void PortStore::serve_members(const std::vector<std::string>& admitted, std::size_t clients) {
    state_ = ForMembers{clients, Admission(admitted)};
    server_.serve_adopted(admitted, clients);
}

void PortStore::close() {
    state_ = NoStore{};
    server_.close();
}

std::size_t PortStore::clients_expected() const {
    const auto* const members = std::get_if<ForMembers>(&state_);
    if (members != nullptr) {
        return members->clients;
    }
    return is_served() ? clients_max_ : 0;
}

bool PortStore::expects(const sockaddr_storage& address) const {
    const auto* const members = std::get_if<ForMembers>(&state_);
    return members != nullptr ? members->admission.admits(address) : is_served();
}

void PortStore::adopt(UniqueFd client) {
    server_.adopt(std::move(client), std::string());
}

}  // namespace ddprun::rdzv
