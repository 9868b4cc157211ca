#include "agent/supervise/lease_watch.hpp"

#include "base/planted_bug.hpp"

namespace ddprun::agent {

namespace {

/// The part of a lease that is trusted: workers that have just looked still act during the rest.
constexpr int kTrustedPercent = 80;

}  // namespace

void LeaseWatch::begin(Milliseconds lease, std::optional<Instant> said_at) {
    end();
    if (lease > Milliseconds::zero()) {
        lease_ = lease;
    }
    confirmed_at_ = said_at;
}

void LeaseWatch::end() {
    confirmed_at_.reset();
    unanswered_.clear();
}

void LeaseWatch::beat_sent(std::uint64_t sequence, Instant now) {
    while (!unanswered_.empty() && unanswered_.front().sent_at + trusted() <= now) {
        unanswered_.pop_front();
    }
    unanswered_.push_back(Beat{.sequence = sequence, .sent_at = now});
}

void LeaseWatch::acknowledged(std::uint64_t sequence) {
    while (!unanswered_.empty() && unanswered_.front().sequence <= sequence) {
        if (unanswered_.front().sequence == sequence) {
            confirmed_at_ = unanswered_.front().sent_at;
        }
        unanswered_.pop_front();
    }
}

Instant LeaseWatch::held_until() const {
    if (lease_ == Milliseconds::zero()) {
        return Instant::max();
    }
    return confirmed_at_.has_value() ? *confirmed_at_ + trusted() : Instant::min();
}

Duration LeaseWatch::trusted() const {
    const int percent = DDP_RULE(kTrustedPercent, IsolationLate, 2 * kTrustedPercent);
    return Duration(lease_) * percent / 100;
}

}  // namespace ddprun::agent
