#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "agent/contract/effects.hpp"
#include "agent/contract/inputs.hpp"
#include "agent/gpu/gpu_helper.hpp"
#include "base/limits.hpp"

namespace ddprun::agent {

/// Finds out whether workers use GPUs. Owned and called by the agent's thread.
class GpuLook {
public:
    GpuLook(GpuHelper& helper, const Limits& limits, std::function<void(GpusLooked)> on_done);

    /// At the workers `pids` and all that belongs to them. Answered by one on_done, perhaps at
    /// once: what cannot be found out counts as not used.
    void look(const LookAtGpus& order, const std::map<LocalRank, int>& pids);

    /// The generation is to be emptied: there is no on_done any more.
    void cancel() { ++looks_; }

private:
    GpuHelper& helper_;
    Limits limits_;
    std::function<void(GpusLooked)> on_done_;
    std::uint64_t looks_ = 0;
};

}  // namespace ddprun::agent
