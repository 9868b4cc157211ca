#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include <torch/types.h>

#include "base/result.hpp"
#include "worker_runtime/env/environment.hpp"
#include "worker_runtime/torch/stop_ballot.hpp"

namespace c10d {
class ProcessGroup;
class Work;
}  // namespace c10d

namespace ddprun {

enum class Backend {
    Auto,  ///< NCCL where this program was built with it and sees a GPU, else Gloo
    Gloo,  ///< CPUs
    Nccl,  ///< GPUs; tensors on CPUs still go through Gloo
};

enum class Reduction { Sum, Min, Max };

struct ProcessGroupOptions {
    /// How long one collective may take; a dead peer is noticed at once, a silent one by this.
    std::chrono::milliseconds timeout{std::chrono::minutes(30)};
    /// How long to wait for the others to come.
    std::chrono::milliseconds join_timeout{std::chrono::minutes(5)};
    /// Else two ranks with one GPU are refused. With Backend::Auto Gloo then carries what lies on
    /// GPUs, on all ranks; with Backend::Nccl it is NCCL that judges.
    bool allow_shared_gpus = false;
};

/// All workers of the generation, for collectives: c10d's process group over ddprun's store. Every
/// rank calls the same collectives in the same order. Once one has failed, because a peer died or
/// was late, the group is broken: the connections to the others are cut, so that they learn of it
/// at once, and every later call fails with the first error. Cheap to copy: copies are the same
/// group. One thread at a time.
class ProcessGroup {
public:
    /// Connects to all others; bound to the address that the launcher has told. A world of one that
    /// nobody launched needs no store.
    [[nodiscard]] static Result<ProcessGroup> join(const worker::WorkerEnvironment& place,
                                                   Backend backend = Backend::Auto,
                                                   const ProcessGroupOptions& options = {});

    [[nodiscard]] int rank() const;
    [[nodiscard]] int world_size() const;
    /// Where this rank's network lives: its GPU under NCCL, else the CPU.
    [[nodiscard]] torch::Device device() const;

    /// In place. `tensor`: any shape, the same on every rank, contiguous. Done when it returns; on
    /// GPUs, as with everything there, when the current stream comes to it.
    [[nodiscard]] Result<void> all_reduce(torch::Tensor& tensor,
                                          Reduction reduction = Reduction::Sum);
    /// In place: everybody has rank `root`'s values afterwards.
    [[nodiscard]] Result<void> broadcast(torch::Tensor& tensor, int root = 0);
    /// [world, ...shape of `tensor`], by rank.
    [[nodiscard]] Result<torch::Tensor> all_gather(const torch::Tensor& tensor);
    /// Returns when every rank has called it.
    [[nodiscard]] Result<void> barrier();

    /// c10d's own group, for whatever is not offered here.
    [[nodiscard]] const c10::intrusive_ptr<c10d::ProcessGroup>& c10d() const;

    /// For the runtime itself.
    [[nodiscard]] worker::StopBallot& stop_ballot() const;

    /// A collective of c10d's own. `begin` starts it and returns its handle, which is waited for;
    /// with none nothing is. What the wait throws breaks the group, and so does what c10d says of
    /// its connections when it begins. Whatever else `begin` throws is the caller's mistake: an
    /// Error that starts with `what`, and the group is as it was.
    [[nodiscard]] Result<void> collective(
        const std::string& what, const std::function<c10::intrusive_ptr<c10d::Work>()>& begin);

    /// For the runtime itself: what `future`, of a collective on CPUs, becomes, or an error once a
    /// connection to a peer has ended and `future` has not within kLossGrace.
    [[nodiscard]] c10::intrusive_ptr<c10::ivalue::Future> unless_lost(
        const c10::intrusive_ptr<c10::ivalue::Future>& future) const;

    /// Waits for all ranks, then lets go of the connections: nobody sees a peer vanish that has
    /// merely finished first. Later calls fail. A second call does nothing.
    [[nodiscard]] Result<void> finish();

private:
    struct State;
    explicit ProcessGroup(std::shared_ptr<State> state);

    std::shared_ptr<State> state_;
};

}  // namespace ddprun
