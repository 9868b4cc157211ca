#include "rendezvous/host/term_writes.hpp"

#include <utility>

#include "base/planted_bug.hpp"
#include "base/probe.hpp"

namespace ddprun::rdzv {

TermWrites::TermWrites(std::uint64_t term, std::map<JobId, std::uint64_t> mod_revisions)
    : term_(term), mod_revisions_(std::move(mod_revisions)) {}

WriteGuard TermWrites::guard(const JobId& job) const {
    const auto known = mod_revisions_.find(job);
    return WriteGuard{.term = DDP_RULE(std::optional(term_), UnguardedWrite, std::nullopt),
                      .mod_revision = known == mod_revisions_.end() ? 0 : known->second};
}

WriteOutcome TermWrites::answered(const JobId& job, bool is_erased, const GuardedAnswer& answer) {
    if (answer.is_done) {
        if (is_erased) {
            mod_revisions_.erase(job);
        } else {
            mod_revisions_[job] = answer.revision;
        }
        return WriteOutcome::Done;
    }
    if (answer.leader_term != term_) {
        return WriteOutcome::Deposed;
    }
    DDP_PROBE(earlier_write_arrived_late);
    mod_revisions_[job] = answer.mod_revision;
    return WriteOutcome::Again;
}

bool EtcdHistory::is_full(std::size_t bytes) {
    written_ += bytes;
    if (written_ < bytes_max_) {
        return false;
    }
    written_ = 0;
    return true;
}

}  // namespace ddprun::rdzv
