#include "worker_runtime/comm/p2p_batch.hpp"

#include <utility>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "worker_runtime/comm/process_group_state.hpp"

namespace ddprun {

P2PBatch& P2PBatch::send(const torch::Tensor& tensor, int to, int tag) {
    transfers_.push_back({.is_send = true, .tensor = tensor, .peer = to, .tag = tag});
    return *this;
}

P2PBatch& P2PBatch::recv(const torch::Tensor& tensor, int from, int tag) {
    transfers_.push_back({.is_send = false, .tensor = tensor, .peer = from, .tag = tag});
    return *this;
}

Pending<void> P2PBatch::begin() {
    const std::vector<Transfer> transfers = std::exchange(transfers_, {});
    if (transfers.empty()) {
        return Pending<void>(group_.check("a batch of transfers"));
    }
    const Result<void> checked = group_.check_call("a batch of transfers", [&] {
        for (const Transfer& transfer : transfers) {
            TORCH_CHECK(transfer.tensor.defined() && transfers.front().tensor.defined(),
                        "a tensor of it is undefined");
            const torch::Device first = transfers.front().tensor.device();
            TORCH_CHECK(transfer.tensor.device() == first, "its tensors are on ", first, " and ",
                        transfer.tensor.device());
            TORCH_CHECK(
                transfer.tensor.layout() == torch::kStrided && transfer.tensor.is_contiguous(),
                "a tensor of it is not contiguous");
            TORCH_CHECK(transfer.tag >= 0, "tag ", transfer.tag, " is below 0");
            worker::require_other_rank(transfer.peer, group_.rank(), group_.world_size());
        }
    });
    if (!checked) {
        return Pending<void>(checked);
    }
    const torch::Device device = transfers.front().tensor.device();
    if (device.is_cpu() || group_.state_->at.is_gpu_shared) {
        std::vector<Pending<void>> begun;
        for (const Transfer& transfer : transfers) {
            begun.push_back(transfer.is_send
                                ? group_.send_async(transfer.tensor, transfer.peer, transfer.tag)
                                : group_.recv_async(transfer.tensor, transfer.peer, transfer.tag));
        }
        return all_of(std::move(begun));
    }
    return group_.collective_async("a batch of transfers", [&] {
        worker::TimedGroup& group = *group_.state_->group;
        try {
            return group.coalesced(device, [&] {
                for (const Transfer& transfer : transfers) {
                    std::vector<torch::Tensor> tensors{transfer.tensor};
                    (void)(transfer.is_send ? group.send(tensors, transfer.peer, transfer.tag)
                                            : group.recv(tensors, transfer.peer, transfer.tag));
                }
            });
        } catch (const c10::Error& failure) {
            // The transfers before the refused one have begun.
            C10_THROW_ERROR(DistBackendError, failure.what_without_backtrace());
        }
    });
}

}  // namespace ddprun
