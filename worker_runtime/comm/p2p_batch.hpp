#pragma once

#include <vector>

#include <torch/types.h>

#include "worker_runtime/comm/pending.hpp"
#include "worker_runtime/comm/process_group.hpp"

namespace ddprun {

/// Sends and receives between pairs of ranks that begin together, so that two ranks may send to
/// each other at once. The transfers between two ranks are in the same order on both, in one batch
/// or in several. On GPUs the batches and collectives of a group are one sequence: two ranks begin
/// those that both take part in in the same order.
class P2PBatch {
public:
    explicit P2PBatch(ProcessGroup group) : group_(std::move(group)) {}

    /// As ProcessGroup::send() and recv(). The tensors of a batch are contiguous, and on one
    /// device.
    P2PBatch& send(const torch::Tensor& tensor, int to, int tag = 0);
    P2PBatch& recv(const torch::Tensor& tensor, int from, int tag = 0);

    /// Begins all, and forgets them; without any the operation has ended. Errors: those of a
    /// collective.
    Pending<void> begin();

private:
    struct Transfer {
        bool is_send = false;
        torch::Tensor tensor;
        int peer = 0;
        int tag = 0;
    };

    ProcessGroup group_;
    std::vector<Transfer> transfers_;
};

}  // namespace ddprun
