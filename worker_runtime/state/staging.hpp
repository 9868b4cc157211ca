#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <torch/types.h>

#include "base/result.hpp"
#include "worker_runtime/state/saving.hpp"

/// Copies of what one rank writes of a checkpoint, so that the training may go on meanwhile. The
/// memory is kept for the next save; for tensors on a GPU it is pinned.
namespace ddprun::worker {

class Staging {
public:
    /// Fails if the memory that reserve() would take is too little. Each of `processes` workers on
    /// this machine may take an equal fraction of the free memory: so all of them look before one
    /// of them reserves.
    [[nodiscard]] Result<void> check_room(const CheckpointShare& share, int processes) const;

    /// Allocates memory for the tensors of `share`. Throws what LibTorch throws.
    void reserve(const CheckpointShare& share);

    /// Brings in the pages of the memory that reserve() took, until `is_cut_short`; any thread. The
    /// first copy then takes no page faults.
    void bring_in_pages(const std::atomic<bool>& is_cut_short) const;

    /// Copies all that the next forward pass may change, and puts the copies into `share`. Records
    /// an event on the stream of each GPU: copy_rest() copies after the work that was queued before
    /// this call. On the training's thread.
    void copy_now(CheckpointShare& share);

    /// Copies everything else, which only an optimizer's step changes; any thread. Throws what
    /// LibTorch throws.
    void copy_rest(CheckpointShare& share) const;

private:
    struct GpuMoment;

    /// Calls visit(key in `copies_`, StateTensor) for all that this rank copies.
    template <typename Share, typename Visit>
    static void for_each_tensor(Share& share, const Visit& visit);

    /// The memory for this copy; undefined if it was not taken, or is of another shape.
    [[nodiscard]] torch::Tensor copy_for(const std::string& key, const StateTensor& state) const;

    std::map<std::string, torch::Tensor> copies_;
    std::vector<std::shared_ptr<GpuMoment>> moments_;  ///< one for each GPU
};

}  // namespace ddprun::worker
