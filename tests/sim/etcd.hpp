#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/instant.hpp"
#include "rendezvous/wire/run_record.hpp"

namespace ddprun::sim {

/// What is on stable storage: the disk of the only daemon, or the run's key in etcd.
struct JournalEntry {
    std::optional<rdzv::RunRecord> record;  ///< goes through the codec when it is read
    std::uint64_t revision = 0;             ///< of the change that wrote it; etcd's only

    [[nodiscard]] bool is_closed() const {
        return record.has_value() && record->phase == rdzv::RecordedPhase::Closed;
    }
    /// Of the generation in it; empty if none.
    [[nodiscard]] std::string digest() const {
        return record.has_value() ? record->digest : std::string();
    }
};

/// Who has the leader's key.
struct LeaderKey {
    int daemon = 0;
    std::uint64_t lease = 0;  ///< that the key is bound to
    std::uint64_t term = 0;   ///< revision at which the key was made
};

/// What several daemons share, as etcd keeps it: the leader's key with its lease, and the record of
/// the run. How long requests are under way, and whether they arrive, is the driver's.
class Etcd {
public:
    explicit Etcd(Duration ttl) : ttl_(ttl) {}

    /// Makes the leader's key with a new lease, unless it is there; true if so.
    [[nodiscard]] bool campaign(Instant now, int daemon, std::uint64_t lease);
    /// False: there is no such lease, or none any more.
    [[nodiscard]] bool prolong(Instant now, std::uint64_t lease);
    /// Deletes the leader's key if its lease is over; true if so.
    bool expire(Instant now);
    /// It was away, and could end no lease: they all count anew.
    void come_back(Instant now) { lease_end_ = now + ttl_; }
    /// What depends on nothing: for one who forgot the guard.
    void put(std::optional<rdzv::RunRecord> record);
    /// Only if the leader's key is of `term`, and the record as `known_revision` has it.
    [[nodiscard]] bool put_guarded(std::optional<rdzv::RunRecord> record, std::uint64_t term,
                                   std::uint64_t known_revision);

    [[nodiscard]] const std::optional<LeaderKey>& leader() const { return leader_; }
    [[nodiscard]] Instant lease_end() const { return lease_end_; }
    [[nodiscard]] const JournalEntry& entry() const { return entry_; }

private:
    Duration ttl_;
    std::uint64_t revision_ = 0;
    std::optional<LeaderKey> leader_;
    Instant lease_end_{};  ///< of the leader's
    JournalEntry entry_;
};

}  // namespace ddprun::sim
