#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/instant.hpp"
#include "rendezvous/host/leader_term.hpp"
#include "rendezvous/host/term_writes.hpp"
#include "rendezvous/wire/run_record.hpp"

namespace ddprun::sim {

/// The content of stable storage: the disk of the only daemon, or the run's key in etcd.
struct JournalEntry {
    std::optional<rdzv::RunRecord> record;  ///< goes through the codec when it is read
    std::uint64_t revision = 0;             ///< of the change that wrote it; etcd's only

    [[nodiscard]] bool is_closed() const {
        return record.has_value() && record->phase == rdzv::RecordedPhase::Closed;
    }
    /// The digest of the generation in the record; empty if none.
    [[nodiscard]] std::string digest() const {
        return record.has_value() ? record->digest : std::string();
    }
};

/// The state that several daemons share, as etcd keeps it: leases, the leader's key, and the record
/// of the run. The driver decides how long requests are under way, and whether they arrive.
class Etcd {
public:
    explicit Etcd(Duration ttl) : ttl_(ttl) {}

    [[nodiscard]] rdzv::LeaseGranted grant(Instant now);
    /// False: there is no such lease, or none any more.
    [[nodiscard]] bool prolong(Instant now, std::int64_t lease);
    [[nodiscard]] rdzv::KeySeen look() const { return {.key = leader_, .revision = revision_}; }
    /// Makes the leader's key unless it exists, and says whose it is; nothing without such a lease.
    [[nodiscard]] std::optional<rdzv::KeySeen> campaign(Instant now, const std::string& endpoint,
                                                        std::int64_t lease);
    /// Deletes the leader's key if its lease is over; true if so.
    bool expire(Instant now);
    /// The leader's key was deleted at `revision` or later.
    [[nodiscard]] bool was_deleted_since(std::uint64_t revision) const {
        return deleted_at_ >= revision;
    }
    /// It was away, and could end no lease: they all count anew.
    void come_back(Instant now);
    /// A write that depends on the leader's key and on the record as it was.
    [[nodiscard]] rdzv::GuardedAnswer put(const std::optional<rdzv::RunRecord>& record,
                                          const rdzv::WriteGuard& guard);

    [[nodiscard]] const std::optional<rdzv::LeaderKey>& leader() const { return leader_; }
    /// The end of the leader's lease.
    [[nodiscard]] Instant lease_end() const { return leases_.at(leader_->lease); }
    [[nodiscard]] const JournalEntry& entry() const { return entry_; }

private:
    Duration ttl_;
    std::uint64_t revision_ = 0;
    std::uint64_t deleted_at_ = 0;
    std::int64_t last_lease_ = 0;
    std::map<std::int64_t, Instant> leases_;  ///< until when
    std::optional<rdzv::LeaderKey> leader_;
    JournalEntry entry_;
};

}  // namespace ddprun::sim
