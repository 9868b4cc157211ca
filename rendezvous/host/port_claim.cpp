#include "rendezvous/host/port_claim.hpp"

#include <fmt/format.h>

#include "base/check.hpp"
#include "rendezvous/core/run.hpp"

namespace ddprun::rdzv {

PortClaim::PortClaim(bool is_everybodys) {
    if (is_everybodys) {
        state_ = Everybodys{};
    }
}

std::optional<std::string> PortClaim::refusal(const JobId& job) const {
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

void PortClaim::claim(const JobId& job) {
    DDP_CHECK(!refusal(job), job.value());
    if (std::holds_alternative<Nobodys>(state_)) {
        state_ = Claimed{job};
    }
}

PortClaim::Change PortClaim::follow(const JobId& job, const Run* run) {
    if (run == nullptr || std::holds_alternative<Closed>(run->phase)) {
        const bool is_its = this->job() != nullptr && *this->job() == job;
        return is_its ? release() : Change::None;
    }
    const bool is_wanted =
        std::holds_alternative<Running>(run->phase) && run->current.store.port == 0;
    // A run that was restored has claimed nothing; by then the port may be another's.
    if (!is_wanted || refusal(job)) {
        return Change::None;
    }
    const auto* const served = std::get_if<Served>(&state_);
    if (served != nullptr && served->digest == run->current.digest) {
        return Change::None;
    }
    state_ = Served{job, run->current.digest};
    return Change::Serve;
}

PortClaim::Change PortClaim::release() {
    if (std::holds_alternative<Everybodys>(state_) || std::holds_alternative<Nobodys>(state_)) {
        return Change::None;
    }
    state_ = Nobodys{};
    return Change::Close;
}

const JobId* PortClaim::job() const {
    if (const auto* const claimed = std::get_if<Claimed>(&state_)) {
        return &claimed->job;
    }
    const auto* const served = std::get_if<Served>(&state_);
    return served == nullptr ? nullptr : &served->job;
}

}  // namespace ddprun::rdzv
