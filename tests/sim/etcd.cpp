#include "tests/sim/etcd.hpp"

#include <utility>

namespace ddprun::sim {

rdzv::LeaseGranted Etcd::grant(Instant now) {
    leases_[++last_lease_] = now + ttl_;
    return {.lease = last_lease_, .ttl = ttl_};
}

/// The leader's lease lives until etcd has checked it, which may be late.
bool Etcd::prolong(Instant now, std::int64_t lease) {
    const auto found = leases_.find(lease);
    const bool is_leaders = leader_.has_value() && leader_->lease == lease;
    if (found == leases_.end() || (!is_leaders && found->second < now)) {
        return false;
    }
    found->second = now + ttl_;
    return true;
}

std::optional<rdzv::KeySeen> Etcd::campaign(Instant now, const std::string& endpoint,
                                            std::int64_t lease) {
    const auto found = leases_.find(lease);
    if (found == leases_.end() || found->second < now) {
        return std::nullopt;
    }
    if (!leader_.has_value()) {
        leader_ = rdzv::LeaderKey{.term = ++revision_, .lease = lease, .endpoint = endpoint};
    }
    return look();
}

bool Etcd::expire(Instant now) {
    const bool is_over = leader_.has_value() && now >= lease_end();
    if (is_over) {
        leases_.erase(leader_->lease);
        leader_.reset();
        deleted_at_ = ++revision_;
    }
    return is_over;
}

void Etcd::come_back(Instant now) {
    for (auto& [lease, end] : leases_) {
        end = now + ttl_;
    }
}

rdzv::GuardedAnswer Etcd::put(const std::optional<rdzv::RunRecord>& record,
                              const rdzv::WriteGuard& guard) {
    rdzv::GuardedAnswer answer;
    const bool is_of_term =
        !guard.term.has_value() || (leader_.has_value() && leader_->term == guard.term);
    answer.is_done = is_of_term && entry_.revision == guard.mod_revision;
    if (answer.is_done) {
        ++revision_;
        // A key that was deleted has no revision.
        entry_ = JournalEntry{.record = record, .revision = record.has_value() ? revision_ : 0};
        answer.revision = revision_;
        return answer;
    }
    if (leader_.has_value()) {
        answer.leader_term = leader_->term;
    }
    answer.mod_revision = entry_.revision;
    return answer;
}

}  // namespace ddprun::sim
