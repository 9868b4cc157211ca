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
    const torch::Device device = transfers.front().tensor.device();
    const Result<void> checked = group_.collective("a batch of transfers", [&] {
        for (const Transfer& transfer : transfers) {
            TORCH_CHECK(transfer.tensor.device() == device, "its tensors are on ", device, " and ",
                        transfer.tensor.device());
            TORCH_CHECK(transfer.tensor.is_contiguous(), "a tensor of it is not contiguous");
            worker::require_other_rank(transfer.peer, group_.rank(), group_.world_size());
        }
        return nullptr;
    });
    if (!checked) {
        return Pending<void>(checked);
    }
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
        return group.coalesced(device, [&] {
            for (const Transfer& transfer : transfers) {
                std::vector<torch::Tensor> tensors{transfer.tensor};
                (void)(transfer.is_send ? group.send(tensors, transfer.peer, transfer.tag)
                                        : group.recv(tensors, transfer.peer, transfer.tag));
            }
        });
    });
}

}  // namespace ddprun
