#include "tests/sim/etcd.hpp"

#include <utility>

namespace ddprun::sim {

bool Etcd::campaign(Instant now, int daemon, std::uint64_t lease) {
    if (leader_.has_value()) {
        return false;
    }
    leader_ = LeaderKey{.daemon = daemon, .lease = lease, .term = ++revision_};
    lease_end_ = now + ttl_;
    return true;
}

bool Etcd::prolong(Instant now, std::uint64_t lease) {
    if (!leader_.has_value() || leader_->lease != lease) {
        return false;
    }
    lease_end_ = now + ttl_;
    return true;
}

bool Etcd::expire(Instant now) {
    const bool is_over = leader_.has_value() && now >= lease_end_;
    if (is_over) {
        leader_.reset();
    }
    return is_over;
}

void Etcd::put(std::optional<rdzv::RunRecord> record) {
    entry_ = JournalEntry{.record = std::move(record), .revision = ++revision_};
}

bool Etcd::put_guarded(std::optional<rdzv::RunRecord> record, std::uint64_t term,
                       std::uint64_t known_revision) {
    if (!leader_.has_value() || leader_->term != term || entry_.revision != known_revision) {
        return false;
    }
    put(std::move(record));
    return true;
}

}  // namespace ddprun::sim
