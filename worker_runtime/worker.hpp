#pragma once

/// Everything that a training program in C++ needs of ddprun. worker_runtime/README.md shows how
/// the parts fit together; examples/train_digits is a whole program.

#include "worker_runtime/torch/activation_checkpoint.hpp"      // IWYU pragma: export
#include "worker_runtime/torch/autocast.hpp"                   // IWYU pragma: export
#include "worker_runtime/torch/checkpoints.hpp"                // IWYU pragma: export
#include "worker_runtime/torch/clip_grad_norm.hpp"             // IWYU pragma: export
#include "worker_runtime/torch/data_loader.hpp"                // IWYU pragma: export
#include "worker_runtime/torch/deterministic.hpp"              // IWYU pragma: export
#include "worker_runtime/torch/distributed_data_parallel.hpp"  // IWYU pragma: export
#include "worker_runtime/torch/distributed_sampler.hpp"        // IWYU pragma: export
#include "worker_runtime/torch/evaluation.hpp"                 // IWYU pragma: export
#include "worker_runtime/torch/fused_optimizers.hpp"           // IWYU pragma: export
#include "worker_runtime/torch/gradient_scaler.hpp"            // IWYU pragma: export
#include "worker_runtime/torch/learning_rate.hpp"              // IWYU pragma: export
#include "worker_runtime/torch/process_group.hpp"              // IWYU pragma: export
#include "worker_runtime/torch/run.hpp"                        // IWYU pragma: export
#include "worker_runtime/torch/spawn.hpp"                      // IWYU pragma: export
#include "worker_runtime/torch/sync_batch_norm.hpp"            // IWYU pragma: export
#include "worker_runtime/torch/training_state.hpp"             // IWYU pragma: export
#include "worker_runtime/torch/worker.hpp"                     // IWYU pragma: export
