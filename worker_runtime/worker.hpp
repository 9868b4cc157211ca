#pragma once

/// Everything that a training program in C++ needs of ddprun. docs/training.md shows how
/// the parts fit together; examples/train_digits is a larger program.

#include "worker_runtime/comm/mesh.hpp"                               // IWYU pragma: export
#include "worker_runtime/comm/p2p_batch.hpp"                          // IWYU pragma: export
#include "worker_runtime/comm/process_group.hpp"                      // IWYU pragma: export
#include "worker_runtime/data/data_loader.hpp"                        // IWYU pragma: export
#include "worker_runtime/data/distributed_sampler.hpp"                // IWYU pragma: export
#include "worker_runtime/data/evaluation.hpp"                         // IWYU pragma: export
#include "worker_runtime/job/deterministic.hpp"                       // IWYU pragma: export
#include "worker_runtime/job/run.hpp"                                 // IWYU pragma: export
#include "worker_runtime/job/spawn.hpp"                               // IWYU pragma: export
#include "worker_runtime/job/worker.hpp"                              // IWYU pragma: export
#include "worker_runtime/nn/activation_checkpoint.hpp"                // IWYU pragma: export
#include "worker_runtime/nn/autocast.hpp"                             // IWYU pragma: export
#include "worker_runtime/nn/sync_batch_norm.hpp"                      // IWYU pragma: export
#include "worker_runtime/optim/clip_grad_norm.hpp"                    // IWYU pragma: export
#include "worker_runtime/optim/fused_optimizers.hpp"                  // IWYU pragma: export
#include "worker_runtime/optim/gradient_scaler.hpp"                   // IWYU pragma: export
#include "worker_runtime/optim/learning_rate.hpp"                     // IWYU pragma: export
#include "worker_runtime/parallel/ddp/distributed_data_parallel.hpp"  // IWYU pragma: export
#include "worker_runtime/parallel/zero/sharded_optimizer.hpp"         // IWYU pragma: export
#include "worker_runtime/state/checkpoints.hpp"                       // IWYU pragma: export
#include "worker_runtime/state/training_state.hpp"                    // IWYU pragma: export
