#include "worker_runtime/job/deterministic.hpp"

#include <ATen/Context.h>

#include <cstdlib>

namespace ddprun {

void deterministic(std::uint64_t seed, DeterministicOptions options) {
    // cuBLAS reads it with its first handle. This size is the faster of the two that it allows.
    (void)setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
    at::Context& context = at::globalContext();
    context.setDeterministicAlgorithms(true, options.warn_only);
    context.setDeterministicCuDNN(true);
    context.setBenchmarkCuDNN(false);
    at::manual_seed(seed);
}

}  // namespace ddprun
