#include "rendezvous/server/port_store.hpp"

#include <utility>
#include <variant>

#include <fmt/format.h>

#include "base/check.hpp"
#include "rendezvous/core/run.hpp"

namespace ddprun::rdzv {

PortStore::PortStore(const Limits& limits, StoreServer::Say say)
    : clients_max_(limits.store_clients_max), server_(limits, std::move(say)) {}

void PortStore::serve_everybody() {
    is_everybodys_ = true;
    clients_expected_ = clients_max_;
    server_.serve_adopted({});
}

std::optional<std::string> PortStore::refusal(const JobId& job) const {
    if (is_everybodys_) {
        return fmt::format(
            "join refused: job {} wants its workers' store on the rendezvous port, where "
            "--serve-tcpstore serves another; start its nodes with --store agent",
            job.value());
    }
    if (job_ && *job_ != job) {
        return fmt::format(
            "join refused: job {} wants its workers' store on the rendezvous port, which has room "
            "for one and serves that of job {}; start its nodes with --store agent, or at another "
            "rendezvous",
            job.value(), job_->value());
    }
    return std::nullopt;
}

void PortStore::claim(const JobId& job) {
    DDP_CHECK(!refusal(job), job.value());
    job_ = job;
}

bool PortStore::expects(const sockaddr_storage& address) const {
    return is_everybodys_ || (!digest_.empty() && admission_.admits(address));
}

void PortStore::follow(const JobId& job, const Run* run) {
    if (run == nullptr || std::holds_alternative<Closed>(run->phase)) {
        if (job_ == job) {
            release();
        }
        return;
    }
    const bool is_wanted = std::holds_alternative<Running>(run->phase) && run->store.port == 0;
    if (!is_wanted || run->digest == digest_ || is_everybodys_) {
        return;
    }
    // A run that was restored has claimed nothing.
    if (job_ && *job_ != job) {
        return;
    }
    job_ = job;
    digest_ = run->digest;
    clients_expected_ = 0;
    for (const Place& place : run->places) {
        clients_expected_ += static_cast<std::size_t>(place.slots);
    }
    admission_ = Admission(run->admitted);
    server_.serve_adopted(run->admitted, clients_expected_);
}

void PortStore::release() {
    if (is_everybodys_) {
        return;
    }
    job_.reset();
    digest_.clear();
    clients_expected_ = 0;
    server_.close();
}

void PortStore::close() {
    is_everybodys_ = false;
    release();
}

void PortStore::adopt(UniqueFd client) {
    server_.adopt(std::move(client), std::string());
}

}  // namespace ddprun::rdzv
