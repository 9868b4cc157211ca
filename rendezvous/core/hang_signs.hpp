#pragma once

#include <cstddef>
#include <optional>
#include <set>

#include "base/instant.hpp"
#include "base/tagged.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::rdzv {

/// The signs of a hang that the members of one generation have seen (--hang-notice); people are
/// told once. If each node sees only its own sign, people are told after all other nodes have
/// looked, too: only then is it known which node is furthest behind. The signs decide nothing and
/// are not recorded. Pure.
class HangSigns {
public:
    /// `node` is one of `members`. Its later signs, and all signs after take_due(), are ignored.
    void add(Instant now, const NodeId& node, std::size_t members, const HangSeen& seen);

    /// When take_due() has something.
    [[nodiscard]] std::optional<Instant> due() const { return due_; }

    /// Returns the sign that people are to be told now, if any: a sign of the whole job, else that
    /// of the node that is furthest behind.
    [[nodiscard]] std::optional<HangSeen> take_due(Instant now);

private:
    std::set<NodeId> seen_by_;
    std::optional<HangSeen> worst_;
    std::optional<Instant> due_;
    bool is_told_ = false;
};

}  // namespace ddprun::rdzv
