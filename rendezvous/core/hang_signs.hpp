#pragma once

#include <cstddef>
#include <optional>
#include <set>

#include "base/instant.hpp"
#include "base/tagged.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::rdzv {

/// The signs of a hang that the members of one generation have seen (--hang-notice), of which
/// people are told once. Where the sign is each node's own, it is told when all others have looked
/// for it, too: only then is it known who is furthest behind. Nothing is decided by it, and no
/// record has it. Pure.
class HangSigns {
public:
    /// Of `node`, one of `members`. Later ones of it, and those after take_due(), count nothing.
    void add(Instant now, const NodeId& node, std::size_t members, const HangSeen& seen);

    /// When take_due() has something.
    [[nodiscard]] std::optional<Instant> due() const { return due_; }

    /// What is to be told now, if anything: of a sign of the whole job, else of the node that is
    /// furthest behind.
    [[nodiscard]] std::optional<HangSeen> take_due(Instant now);

private:
    std::set<NodeId> seen_by_;
    std::optional<HangSeen> worst_;
    std::optional<Instant> due_;
    bool is_told_ = false;
};

}  // namespace ddprun::rdzv
