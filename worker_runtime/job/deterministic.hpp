#pragma once

#include <cstdint>

namespace ddprun {

struct DeterministicOptions {
    /// A kernel that has no deterministic form warns in place of throwing.
    bool warn_only = false;
};

/// From here on the same program gives the same bits on the same kind of machine, or an operation
/// throws that cannot: all random generators start from `seed`, kernels are LibTorch's
/// deterministic ones, and cuDNN does not choose its algorithms by measuring. Python does this by
/// torch.manual_seed, torch.use_deterministic_algorithms and torch.backends.cudnn. Sets
/// CUBLAS_WORKSPACE_CONFIG, which cuBLAS wants for it, unless it is set. Sums over NCCL have the
/// same bits only with the same algorithm, protocol and placement of ranks, which are not set here
/// (docs/training.md). Called at the start of main, before other threads and before the first use
/// of a GPU. For masks of dropout that differ between ranks add the rank to the seed:
/// DistributedDataParallel gives all the same parameters anyway.
void deterministic(std::uint64_t seed, DeterministicOptions options = {});

}  // namespace ddprun
