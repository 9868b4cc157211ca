#pragma once

#include <memory>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "worker_runtime/comm/peer_watch.hpp"

namespace ddprun::worker {

/// `backend`, an engine for tensors on CPUs, with one difference: what it has begun fails once
/// `loss` is told of a lost rank, whoever waits for it, also below c10d; all but c10d's
/// reduce_scatter. Later calls throw that.
[[nodiscard]] c10::intrusive_ptr<c10d::Backend> make_guarded(
    c10::intrusive_ptr<c10d::Backend> backend, std::shared_ptr<Loss> loss);

}  // namespace ddprun::worker
