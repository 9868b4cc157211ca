#pragma once

#include <optional>

#include "agent/contract/effects.hpp"
#include "base/tagged.hpp"

namespace ddprun::agent {

/// When the newest checkpoint of a node's workers is read ahead, for the next ones to find it in
/// memory: once per generation, as soon as its end is begun here. Workers that are asked to save
/// write a newer one, so a drain is waited for. Pure; owned and called by the agent's thread.
class ReadAheadMoment {
public:
    /// `effect` is being carried out; `is_ending`: the agent goes, and no worker starts here any
    /// more. The generation whose moment it is; none: it is not.
    [[nodiscard]] std::optional<Generation> of(const Effect& effect, bool is_ending);

private:
    Generation begun_;         ///< its moment is over
    bool is_leaving_ = false;  ///< the rendezvous was told
};

}  // namespace ddprun::agent
