#include "rendezvous/server/port_store.hpp"

#include <utility>
#include <variant>

#include <fmt/format.h>

#include "rendezvous/core/run.hpp"

namespace ddprun::rdzv {

PortStore::PortStore(const Limits& limits, StoreServer::Say say)
    : server_(limits, std::move(say)) {}

void PortStore::serve_everybody() {
    is_everybodys_ = true;
    server_.serve_adopted({});
}

std::optional<std::string> PortStore::claim(const JobId& job) {
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
    job_ = job;
    return std::nullopt;
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

void PortStore::adopt(UniqueFd client, std::string first_bytes) {
    server_.adopt(std::move(client), std::move(first_bytes));
}

}  // namespace ddprun::rdzv
