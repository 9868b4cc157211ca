#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "base/tagged.hpp"

namespace ddprun::rdzv {

/// The condition of a leader's write: etcd carries it out only if the leader's key was made at
/// `term` and the record's key was changed last at `mod_revision` (0: it is not there).
struct WriteGuard {
    std::optional<std::uint64_t> term;  ///< none only where that mistake is planted
    std::uint64_t mod_revision = 0;
};

/// Answer of etcd to such a write.
struct GuardedAnswer {
    bool is_done = false;
    std::uint64_t revision = 0;                ///< done: of the change
    std::optional<std::uint64_t> leader_term;  ///< not done: of the key that exists
    std::uint64_t mod_revision = 0;            ///< not done: of the record; 0: it is not there
};

enum class WriteOutcome {
    Done,
    Again,    ///< with the guard() of now: an earlier request of this term had arrived late
    Deposed,  ///< the key is not this term's
};

/// The guards of one term's writes. Pure.
class TermWrites {
public:
    /// `mod_revisions`: of the records that existed when the term began.
    TermWrites(std::uint64_t term, std::map<JobId, std::uint64_t> mod_revisions);

    [[nodiscard]] WriteGuard guard(const JobId& job) const;

    /// Takes in what became of a write with that guard. `is_erased`: it was to delete the record.
    [[nodiscard]] WriteOutcome answered(const JobId& job, bool is_erased,
                                        const GuardedAnswer& answer);

private:
    const std::uint64_t term_;
    std::map<JobId, std::uint64_t> mod_revisions_;
};

/// Etcd keeps each earlier state of a key until it is told to forget it, and what it keeps counts
/// towards its quota. This is when the leader of one term has it forget. Pure.
class EtcdHistory {
public:
    /// `bytes_max`: written between two times. Earlier terms may have left as much: the first write
    /// of a term is one of these times.
    explicit EtcdHistory(std::size_t bytes_max) : bytes_max_(bytes_max), written_(bytes_max) {}

    /// Takes in a change of `bytes`. True: whatever was before it is to be forgotten now, and
    /// counts as forgotten, also if etcd does not do it: it is told again in its turn.
    [[nodiscard]] bool is_full(std::size_t bytes);

private:
    const std::size_t bytes_max_;
    std::size_t written_;  ///< since the last time
};

}  // namespace ddprun::rdzv
