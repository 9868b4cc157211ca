#pragma once

#include <cstdlib>
#include <optional>

#include "worker_runtime/contract/containment_level.hpp"

namespace ddprun::agent {

/// $DDPRUN_TEST_CONTAINMENT, a word of --containment; unset: the highest level there is.
inline std::optional<ContainmentLevel> wanted_containment() {
    const char* word = std::getenv("DDPRUN_TEST_CONTAINMENT");
    return word == nullptr ? std::nullopt : containment_of(word);
}

}  // namespace ddprun::agent
