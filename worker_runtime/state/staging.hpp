#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include <torch/types.h>

#include "base/result.hpp"
#include "worker_runtime/state/saving.hpp"

/// Copies of what one rank writes of a checkpoint, so that the training may go on meanwhile. The
/// memory is kept for the next save; for tensors on a GPU it is pinned.
namespace ddprun::worker {

class Staging {
public:
    /// Makes room for the tensors of `share`. Fails, and takes nothing, if that needs more than
    /// this process's part of the free memory, which `processes` on this machine take alike.
    [[nodiscard]] Result<void> reserve(const CheckpointShare& share, int processes);

    /// Copies what the next forward pass may change, and puts the copies into `share`. Notes, for
    /// copy_rest(), what the GPU has to do before. On the training's thread.
    void copy_now(CheckpointShare& share);

    /// Copies everything else, which only an optimizer's step changes; any thread. Throws what
    /// LibTorch throws.
    void copy_rest(CheckpointShare& share) const;

private:
    struct GpuMoment;

    [[nodiscard]] static std::string key_of(const CheckpointShare::File& file,
                                            const std::string& name);

    std::map<std::string, torch::Tensor> copies_;  ///< by file kind and name
    std::shared_ptr<GpuMoment> moment_;
};

}  // namespace ddprun::worker
