#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "worker_runtime/comm/work_deadlines.hpp"

namespace ddprun::worker {

/// c10d's group, with one difference: once it has deadlines, the collectives and transfers of
/// tensors on a GPU below get one, whichever code begins them, c10d's reducer too.
class TimedGroup final : public c10d::ProcessGroup {
public:
    using ProcessGroup::ProcessGroup;

    /// Before any tensor on a GPU is given to the group.
    void use(std::unique_ptr<WorkDeadlines> deadlines) { deadlines_ = std::move(deadlines); }

    /// Gives `work` on tensors on `device` its deadline; `work`. `peers`: see WorkDeadlines.
    c10::intrusive_ptr<c10d::Work> timed(c10::intrusive_ptr<c10d::Work> work,
                                         const c10::Device& device, std::vector<int> peers = {});

    /// As all_gather and reduce_scatter of flat tensors, through the engine itself: c10d's names
    /// of these two depend on its version.
    c10::intrusive_ptr<c10d::Work> all_gather_into(at::Tensor& output, at::Tensor& input);
    c10::intrusive_ptr<c10d::Work> reduce_scatter_into(at::Tensor& output, at::Tensor& input,
                                                       const c10d::ReduceScatterOptions& options);
    /// The same of several tensors, as one operation.
    c10::intrusive_ptr<c10d::Work> all_gather_into(std::vector<at::Tensor> outputs,
                                                   std::vector<at::Tensor> inputs);
    c10::intrusive_ptr<c10d::Work> reduce_scatter_into(std::vector<at::Tensor> outputs,
                                                       std::vector<at::Tensor> inputs,
                                                       const c10d::ReduceScatterOptions& options);

    /// The transfers of tensors on `device`, a GPU, that `begin` begins, as one operation of the
    /// engine.
    c10::intrusive_ptr<c10d::Work> coalesced(const c10::Device& device,
                                             const std::function<void()>& begin);

    c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                             const c10d::BroadcastOptions& options) override;
    c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                             const c10d::AllreduceOptions& options) override;
    c10::intrusive_ptr<c10d::Work> allreduce_coalesced(
        std::vector<at::Tensor>& tensors, const c10d::AllreduceCoalescedOptions& options) override;
    c10::intrusive_ptr<c10d::Work> reduce(std::vector<at::Tensor>& tensors,
                                          const c10d::ReduceOptions& options) override;
    c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                             std::vector<at::Tensor>& inputs,
                                             const c10d::AllgatherOptions& options) override;
    c10::intrusive_ptr<c10d::Work> gather(std::vector<std::vector<at::Tensor>>& outputs,
                                          std::vector<at::Tensor>& inputs,
                                          const c10d::GatherOptions& options) override;
    c10::intrusive_ptr<c10d::Work> scatter(std::vector<at::Tensor>& outputs,
                                           std::vector<std::vector<at::Tensor>>& inputs,
                                           const c10d::ScatterOptions& options) override;
    c10::intrusive_ptr<c10d::Work> reduce_scatter(
        std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
        const c10d::ReduceScatterOptions& options) override;
    c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                                 std::vector<std::int64_t>& output_counts,
                                                 std::vector<std::int64_t>& input_counts,
                                                 const c10d::AllToAllOptions& options) override;
    c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override;
    c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from,
                                        int tag) override;
    c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override;

private:
    std::unique_ptr<WorkDeadlines> deadlines_;
    /// Within coalesced(), whose parts have no deadline: the other ranks so far.
    std::optional<std::vector<int>> coalesced_peers_;
};

}  // namespace ddprun::worker
