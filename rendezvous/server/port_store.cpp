#include "rendezvous/server/port_store.hpp"

#include <utility>

#include <fmt/format.h>

#include "base/check.hpp"
#include "rendezvous/core/run.hpp"

namespace ddprun::rdzv {

PortStore::PortStore(const Limits& limits, StoreServer::Say say)
    : clients_max_(limits.store_clients_max), server_(limits, std::move(say)) {}

void PortStore::serve_everybody() {
    state_ = Everybodys{};
    server_.serve_adopted({});
}

std::optional<std::string> PortStore::refusal(const JobId& job) const {
    if (std::holds_alternative<Everybodys>(state_)) {
        return fmt::format(
            "join refused: job {} wants its workers' store on the rendezvous port, where "
            "--serve-tcpstore serves another; start its nodes with --store agent",
            job.value());
    }
    if (const JobId* const served = this->job(); served != nullptr && *served != job) {
        return fmt::format(
            "join refused: job {} wants its workers' store on the rendezvous port, which has room "
            "for one and serves that of job {}; start its nodes with --store agent, or at another "
            "rendezvous",
            job.value(), served->value());
    }
    return std::nullopt;
}

void PortStore::claim(const JobId& job) {
    DDP_CHECK(!refusal(job), job.value());
    if (std::holds_alternative<Nobodys>(state_)) {
        state_ = Claimed{job};
    }
}

bool PortStore::is_served() const {
    return std::holds_alternative<Everybodys>(state_) || std::holds_alternative<Served>(state_);
}

const JobId* PortStore::job() const {
    if (const auto* const claimed = std::get_if<Claimed>(&state_)) {
        return &claimed->job;
    }
    const auto* const served = std::get_if<Served>(&state_);
    return served == nullptr ? nullptr : &served->job;
}

std::size_t PortStore::clients_expected() const {
    if (const auto* const served = std::get_if<Served>(&state_)) {
        return served->clients;
    }
    return std::holds_alternative<Everybodys>(state_) ? clients_max_ : 0;
}

bool PortStore::expects(const sockaddr_storage& address) const {
    const auto* const served = std::get_if<Served>(&state_);
    return std::holds_alternative<Everybodys>(state_) ||
           (served != nullptr && served->admission.admits(address));
}

void PortStore::follow(const JobId& job, const Run* run) {
    if (run == nullptr || std::holds_alternative<Closed>(run->phase)) {
        if (this->job() != nullptr && *this->job() == job) {
            release();
        }
        return;
    }
    const bool is_wanted =
        std::holds_alternative<Running>(run->phase) && run->current.store.port == 0;
    // A run that was restored has claimed nothing; by then the port may be another's.
    if (!is_wanted || refusal(job)) {
        return;
    }
    const auto* const served = std::get_if<Served>(&state_);
    if (served != nullptr && served->digest == run->current.digest) {
        return;
    }
    std::size_t clients = 0;
    for (const Place& place : run->current.places) {
        clients += static_cast<std::size_t>(place.slots);
    }
    state_ = Served{job, run->current.digest, clients, Admission(run->current.admitted)};
    server_.serve_adopted(run->current.admitted, clients);
}

void PortStore::release() {
    if (!std::holds_alternative<Everybodys>(state_)) {
        close();
    }
}

void PortStore::close() {
    state_ = Nobodys{};
    server_.close();
}

void PortStore::adopt(UniqueFd client) {
    server_.adopt(std::move(client), std::string());
}

}  // namespace ddprun::rdzv
