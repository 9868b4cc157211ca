#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "base/result.hpp"
#include "worker_runtime/comm/background_saves.hpp"
#include "worker_runtime/comm/pending.hpp"
#include "worker_runtime/comm/stop_ballot.hpp"
#include "worker_runtime/env/environment.hpp"

namespace c10d {
class ProcessGroup;
class Work;
struct ReduceOp;
}  // namespace c10d

namespace ddprun {

namespace worker {
class Loss;
class TimedGroup;
struct BackendPlace;
}  // namespace worker

enum class Backend {
    Auto,  ///< NCCL where this program was built with it and sees a GPU, else Gloo
    Gloo,  ///< CPUs
    Nccl,  ///< GPUs; tensors on CPUs still go through Gloo
};

enum class Reduction {
    Sum,
    Mean,  ///< of floating-point numbers; where the engine has none (Gloo) a sum, then divided
    Min,
    Max,
    Product,
};

struct ProcessGroupOptions {
    /// How long one collective may take; a dead peer is noticed at once, a silent one by this.
    std::chrono::milliseconds timeout{std::chrono::minutes(30)};
    /// How long to wait for the others to come.
    std::chrono::milliseconds join_timeout{std::chrono::minutes(5)};
    /// Else two ranks with one GPU are refused. With Backend::Auto Gloo then carries what lies on
    /// GPUs, on all ranks; with Backend::Nccl it is NCCL that judges.
    bool allow_shared_gpus = false;
    /// How many GPUs each rank has, for networks that span devices: those from local rank *
    /// gpus_per_rank on, or all that the worker sees if these are as many. The same on all ranks.
    int gpus_per_rank = 1;
};

/// All workers of the generation, for collectives: c10d's process group over ddprun's store. Every
/// rank calls the same collectives in the same order. Once one has failed, because a peer died or
/// was late, the group is broken: the connections to the others are cut, so that they learn of it
/// at once, and every later call fails with the first error. Cheap to copy: copies are the same
/// group. One thread at a time.
class ProcessGroup {
    struct State;

public:
    /// Connects to all others; bound to the address that the launcher has told. A world of one
    /// without a launcher needs no store.
    [[nodiscard]] static Result<ProcessGroup> join(const worker::WorkerEnvironment& place,
                                                   Backend backend = Backend::Auto,
                                                   const ProcessGroupOptions& options = {});

    [[nodiscard]] int rank() const;
    [[nodiscard]] int world_size() const;
    /// The device of this rank's network: its GPU under NCCL, or a shared one; else the CPU.
    [[nodiscard]] torch::Device device() const { return devices().front(); }
    /// Its `gpus_per_rank` GPUs, of which device() is the first; else the CPU alone. Collectives
    /// carry tensors on each of them. Each rank's tensor is on the GPU of the same number in here.
    [[nodiscard]] const std::vector<torch::Device>& devices() const;

    // Collectives. Tensors are of one dtype and device on all ranks; on CPUs float64, float32,
    // float16, bfloat16, int64, int32, int8, uint8 and bool. A result is a new tensor like the
    // input.
    //
    // Each has an asynchronous form, which begins and returns; the collective is done when wait()
    // of the Pending returns. On GPUs it is done, as with everything there, when the stream that is
    // current in wait() comes to it. Until then no rank changes its tensors, and nobody reads what
    // is to be written. Every rank begins the same collectives in the same order.
    //
    // InvalidArgument: this rank's own mistake, nothing was sent, the group is as it was, and those
    // who have called it rightly wait for this rank. ConnectionLost: a peer died or was late, the
    // group is broken, every collective that is pending ends with that error, and the tensors that
    // were to be written hold anything. System: this rank's device or memory has failed, and the
    // group is broken for all.

    /// In place. `tensor`: any shape, the same on every rank, contiguous.
    [[nodiscard]] Result<void> all_reduce(torch::Tensor& tensor,
                                          Reduction reduction = Reduction::Sum) {
        return all_reduce_async(tensor, reduction).wait();
    }
    Pending<void> all_reduce_async(const torch::Tensor& tensor,
                                   Reduction reduction = Reduction::Sum);
    /// all_reduce() of several tensors, as one operation. They are of one type and device.
    [[nodiscard]] Result<void> all_reduce_coalesced(const std::vector<torch::Tensor>& tensors,
                                                    Reduction reduction = Reduction::Sum) {
        return all_reduce_coalesced_async(tensors, reduction).wait();
    }
    Pending<void> all_reduce_coalesced_async(const std::vector<torch::Tensor>& tensors,
                                             Reduction reduction = Reduction::Sum);
    /// As all_reduce(), for rank `root` alone: on the others `tensor` holds anything afterwards.
    [[nodiscard]] Result<void> reduce(torch::Tensor& tensor, int root = 0,
                                      Reduction reduction = Reduction::Sum) {
        return reduce_async(tensor, root, reduction).wait();
    }
    Pending<void> reduce_async(const torch::Tensor& tensor, int root = 0,
                               Reduction reduction = Reduction::Sum);
    /// In place: each rank has rank `root`'s values afterwards.
    [[nodiscard]] Result<void> broadcast(torch::Tensor& tensor, int root = 0) {
        return broadcast_async(tensor, root).wait();
    }
    Pending<void> broadcast_async(const torch::Tensor& tensor, int root = 0);
    /// [world, ...shape of `tensor`], by rank.
    [[nodiscard]] Result<torch::Tensor> all_gather(const torch::Tensor& tensor) {
        return all_gather_async(tensor).wait();
    }
    Pending<torch::Tensor> all_gather_async(const torch::Tensor& tensor);
    /// The same into `gathered`, without a copy. Both tensors: contiguous, of one type; `gathered`
    /// has `world` times the numbers of `tensor`, in any shape, and may overlap it where this
    /// rank's numbers belong.
    [[nodiscard]] Result<void> all_gather_into(torch::Tensor& gathered,
                                               const torch::Tensor& tensor) {
        return all_gather_into_async(gathered, tensor).wait();
    }
    Pending<void> all_gather_into_async(const torch::Tensor& gathered, const torch::Tensor& tensor);
    /// all_gather_into() of several pairs of tensors, of one type and device; on GPUs as one
    /// operation.
    [[nodiscard]] Result<void> all_gather_into_coalesced(
        const std::vector<torch::Tensor>& gathered, const std::vector<torch::Tensor>& tensors) {
        return all_gather_into_coalesced_async(gathered, tensors).wait();
    }
    Pending<void> all_gather_into_coalesced_async(const std::vector<torch::Tensor>& gathered,
                                                  const std::vector<torch::Tensor>& tensors);
    /// As all_gather() on rank `root`; an undefined tensor on the others.
    [[nodiscard]] Result<torch::Tensor> gather(const torch::Tensor& tensor, int root = 0) {
        return gather_async(tensor, root).wait();
    }
    Pending<torch::Tensor> gather_async(const torch::Tensor& tensor, int root = 0);
    /// `tensor` becomes `parts[rank]`, with rank `root`'s parts: [world, ...shape of `tensor`]. On
    /// the others `parts` is not read. `tensor`: contiguous.
    [[nodiscard]] Result<void> scatter(torch::Tensor& tensor, const torch::Tensor& parts,
                                       int root = 0) {
        return scatter_async(tensor, parts, root).wait();
    }
    Pending<void> scatter_async(const torch::Tensor& tensor, const torch::Tensor& parts,
                                int root = 0);
    /// [...]: of `parts`, [world, ...] on every rank, row `rank` of the reduction over all ranks.
    [[nodiscard]] Result<torch::Tensor> reduce_scatter(const torch::Tensor& parts,
                                                       Reduction reduction = Reduction::Sum) {
        return reduce_scatter_async(parts, reduction).wait();
    }
    Pending<torch::Tensor> reduce_scatter_async(const torch::Tensor& parts,
                                                Reduction reduction = Reduction::Sum);
    /// The same into `own`; on GPUs without a copy. Both tensors: contiguous, of one type; `parts`
    /// has `world` times the numbers of `own`, in any shape. Over Gloo this takes
    /// new memory of the size of `parts`, unless the caller gives `room`, a tensor like `parts`.
    [[nodiscard]] Result<void> reduce_scatter_into(torch::Tensor& own, const torch::Tensor& parts,
                                                   Reduction reduction = Reduction::Sum) {
        return reduce_scatter_into_async(own, parts, reduction).wait();
    }
    Pending<void> reduce_scatter_into_async(const torch::Tensor& own, const torch::Tensor& parts,
                                            Reduction reduction = Reduction::Sum,
                                            const torch::Tensor& room = {});
    /// reduce_scatter_into() of several pairs of tensors, of one type and device; on GPUs as one
    /// operation.
    [[nodiscard]] Result<void> reduce_scatter_into_coalesced(
        const std::vector<torch::Tensor>& own, const std::vector<torch::Tensor>& parts,
        Reduction reduction = Reduction::Sum) {
        return reduce_scatter_into_coalesced_async(own, parts, reduction).wait();
    }
    Pending<void> reduce_scatter_into_coalesced_async(const std::vector<torch::Tensor>& own,
                                                      const std::vector<torch::Tensor>& parts,
                                                      Reduction reduction = Reduction::Sum);
    /// [world, ...]: row r is row `rank` of rank r's `parts`, [world, ...] on every rank.
    [[nodiscard]] Result<torch::Tensor> all_to_all(const torch::Tensor& parts) {
        return all_to_all_async(parts).wait();
    }
    Pending<torch::Tensor> all_to_all_async(const torch::Tensor& parts);
    /// With as many rows for each rank as it is told: the first `send_rows[0]` rows of `rows`,
    /// [n, ...], go to rank 0, the next to rank 1. `receive_rows[r]` come from rank r, which must
    /// send as many; they are in the result by rank. Either may be 0.
    [[nodiscard]] Result<torch::Tensor> all_to_all(const torch::Tensor& rows,
                                                   const std::vector<std::int64_t>& send_rows,
                                                   const std::vector<std::int64_t>& receive_rows) {
        return all_to_all_async(rows, send_rows, receive_rows).wait();
    }
    Pending<torch::Tensor> all_to_all_async(const torch::Tensor& rows,
                                            const std::vector<std::int64_t>& send_rows,
                                            const std::vector<std::int64_t>& receive_rows);

    /// To one rank, which receives with the same `tag` and shape. Returns when the tensor is
    /// handed over: it may wait until the other receives. Two ranks that send to each other use
    /// P2PBatch. On GPUs there are no tags: what is sent first is received first.
    [[nodiscard]] Result<void> send(const torch::Tensor& tensor, int to, int tag = 0) {
        return send_async(tensor, to, tag).wait();
    }
    Pending<void> send_async(const torch::Tensor& tensor, int to, int tag = 0);
    /// `tensor`, contiguous, becomes what rank `from` sends.
    [[nodiscard]] Result<void> recv(torch::Tensor& tensor, int from, int tag = 0) {
        return recv_async(tensor, from, tag).wait();
    }
    Pending<void> recv_async(const torch::Tensor& tensor, int from, int tag = 0);

    /// Returns when every rank has called it.
    [[nodiscard]] Result<void> barrier() { return barrier_async().wait(); }
    Pending<void> barrier_async();

    /// c10d's own group, for whatever is not offered here.
    [[nodiscard]] c10::intrusive_ptr<c10d::ProcessGroup> c10d() const;

    /// For the runtime itself.
    [[nodiscard]] worker::StopBallot& stop_ballot() const;

    /// For the runtime itself.
    [[nodiscard]] worker::BackgroundSaves& background_saves() const;

    /// How long this rank has waited in collectives on CPUs since Worker::progress() took it last;
    /// any thread. Sub-groups have their group's.
    [[nodiscard]] const std::shared_ptr<std::atomic<std::int64_t>>& waited_ns() const;

    /// Runs a collective of c10d's own. `begin` starts it and returns its handle, which is waited
    /// for unless it is null. An exception of the wait breaks the group. So does an exception of
    /// `begin` about c10d's connections, or about a device or memory that fails: the other ranks
    /// wait for a collective that this rank has not begun. Any other exception of `begin` is the
    /// caller's mistake: an Error that starts with `what`, and the group is as it was.
    [[nodiscard]] Result<void> collective(
        const std::string& what, const std::function<c10::intrusive_ptr<c10d::Work>()>& begin);
    Pending<void> collective_async(const std::string& what,
                                   const std::function<c10::intrusive_ptr<c10d::Work>()>& begin);

    /// An Error, which names `what`, once the group is broken. On GPUs a collective returns before
    /// it is done, and when a rank is lost meanwhile its result may be anything: what was read to
    /// the CPU is good if this finds nothing afterwards.
    [[nodiscard]] Result<void> check(const std::string& what);

    /// As check(), after waiting for all that the group's devices have been given: until then
    /// tensors that a collective writes on a GPU may hold anything.
    [[nodiscard]] Result<void> check_after(const std::string& what);

    /// The one number in `tensor`, which is read to the CPU, and what check() finds afterwards. A
    /// device that fails meanwhile breaks the group.
    [[nodiscard]] Result<double> read(const std::string& what, const torch::Tensor& tensor);

    /// For the runtime itself: the engine for tensors on `device` knows Reduction::Mean.
    [[nodiscard]] bool has_mean(torch::Device device) const;
    /// For the runtime itself: whether a rank of this group is lost; any thread.
    [[nodiscard]] const std::shared_ptr<worker::Loss>& loss() const;
    /// For the runtime itself: how many connections to other ranks are watched.
    [[nodiscard]] std::size_t watched_connections() const;

    /// A group of some of these ranks, numbered from 0 in ascending order. Every rank of this group
    /// calls it, with the same `ranks`; those that are not among them get none. Its collectives and
    /// this group's may be mixed as long as each rank of either calls them in the same order. When
    /// a rank of this group dies the sub-group is cut as well, whether or not it was a part of it;
    /// when the sub-group fails, say by its time-out, this group is as it was. It ends with this
    /// group's finish(), or earlier with its own.
    /// Its engines' name, in logs and in the flight recorder, is this group's and `name`; none: its
    /// number among the sub-groups.
    [[nodiscard]] Result<std::optional<ProcessGroup>> subgroup(const std::vector<int>& ranks,
                                                               const std::string& name = "");

    /// For the runtime itself: the same ranks once more, over Gloo alone, for another thread, which
    /// is none of the training's waits. Every rank calls it. It ends with this group.
    [[nodiscard]] Result<ProcessGroup> gloo_twin();

    /// For the runtime itself: while it lives, collectives on CPUs that this rank begins may take
    /// `at_least`, if the group's own time-out is shorter. The group outlives it.
    class LongerWait {
    public:
        LongerWait(const ProcessGroup& group, std::chrono::milliseconds at_least);
        ~LongerWait();
        LongerWait(const LongerWait&) = delete;
        LongerWait& operator=(const LongerWait&) = delete;

    private:
        State& state_;
    };

    /// Waits for saves beside the training and for all ranks, then lets go of the connections,
    /// those of the sub-groups too: no rank sees a peer vanish that has merely finished first.
    /// Later calls fail. A second call does nothing.
    [[nodiscard]] Result<void> finish();

private:
    friend class P2PBatch;

    explicit ProcessGroup(std::shared_ptr<State> state);

    /// Connects with those that have the same `at.world_size`, each with its own `at.rank`.
    [[nodiscard]] Result<std::shared_ptr<State>> connect_part(const worker::BackendPlace& at,
                                                              const std::string& name,
                                                              const std::string& what);

    /// Whether the engine for `tensor` has no mean, so that a sum is divided; throws where there is
    /// no mean of its type.
    [[nodiscard]] bool divides(const torch::Tensor& tensor, Reduction reduction) const;

    /// Begins the engine's operation, and sets what it writes.
    using BeginReduction =
        std::function<c10::intrusive_ptr<c10d::Work>(c10d::ReduceOp, torch::Tensor& result)>;
    /// As collective_async(), with the engine's operation for `reduction` of numbers like those of
    /// `tensor`.
    Pending<torch::Tensor> reducing(const std::string& what, const torch::Tensor& tensor,
                                    Reduction reduction, const BeginReduction& begin);

    /// Checks pairs of a tensor with the numbers of all ranks and one with this rank's. Then
    /// `begin_each` begins them one by one over Gloo, else `begin_all` all of them at once.
    Pending<void> coalesced(
        const std::string& what, const std::vector<torch::Tensor>& of_all,
        const std::vector<torch::Tensor>& of_one, Reduction reduction,
        const std::function<Pending<void>(std::size_t pair)>& begin_each,
        const std::function<c10::intrusive_ptr<c10d::Work>(worker::TimedGroup& group)>& begin_all);

    /// Whether Gloo carries `tensor`; one that is undefined is refused there.
    [[nodiscard]] bool is_over_gloo(const torch::Tensor& tensor) const;

    /// For what is several collectives below, of which none begins unless all may: the refusal of a
    /// call for which `check` throws, or the error of a broken group.
    [[nodiscard]] Result<void> check_call(const std::string& what,
                                          const std::function<void()>& check);

    /// Over Gloo: all_gather_into().
    Pending<void> parts_into(const std::string& what, const torch::Tensor& gathered,
                             const torch::Tensor& tensor);

    /// Over Gloo: this rank's row of each rank, of `rows()`, [world, ...]; in `room` if it is
    /// defined.
    Pending<torch::Tensor> rows_for_reduction(const std::string& what, Reduction reduction,
                                              const torch::Tensor& room,
                                              const std::function<torch::Tensor()>& rows);

    std::shared_ptr<State> state_;
};

}  // namespace ddprun
