// The headers of the runtime, at the paths of its first versions: programs include them there.
#include "worker_runtime/torch/activation_checkpoint.hpp"
#include "worker_runtime/torch/autocast.hpp"
#include "worker_runtime/torch/checkpoints.hpp"
#include "worker_runtime/torch/clip_grad_norm.hpp"
#include "worker_runtime/torch/data_loader.hpp"
#include "worker_runtime/torch/deterministic.hpp"
#include "worker_runtime/torch/distributed_data_parallel.hpp"
#include "worker_runtime/torch/distributed_sampler.hpp"
#include "worker_runtime/torch/evaluation.hpp"
#include "worker_runtime/torch/fused_optimizers.hpp"
#include "worker_runtime/torch/gradient_reducer.hpp"
#include "worker_runtime/torch/gradient_scaler.hpp"
#include "worker_runtime/torch/learning_rate.hpp"
#include "worker_runtime/torch/limits.hpp"
#include "worker_runtime/torch/output_tensors.hpp"
#include "worker_runtime/torch/process_group.hpp"
#include "worker_runtime/torch/run.hpp"
#include "worker_runtime/torch/spawn.hpp"
#include "worker_runtime/torch/stop_ballot.hpp"
#include "worker_runtime/torch/sync_batch_norm.hpp"
#include "worker_runtime/torch/training_state.hpp"
#include "worker_runtime/torch/worker.hpp"

static_assert(sizeof(ddprun::Checkpoints) > 0);
static_assert(sizeof(ddprun::DataLoaderOptions) > 0);
static_assert(sizeof(ddprun::FusedAdamW) > 0);
static_assert(sizeof(ddprun::SyncBatchNorm) > 0);
static_assert(sizeof(ddprun::Worker) > 0);
static_assert(sizeof(ddprun::worker::GradientReducer) > 0);
static_assert(sizeof(ddprun::worker::RuntimeLimits) > 0);
static_assert(sizeof(ddprun::worker::StopBallot) > 0);
