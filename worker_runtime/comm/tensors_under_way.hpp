#pragma once

#include <optional>

#include <torch/types.h>

#include "base/result.hpp"
#include "worker_runtime/comm/pending.hpp"

namespace ddprun::worker {

/// Tensors that collectives still write while the training goes on. The first operator of LibTorch
/// that takes one of them, or a tensor that shares its memory, waits for its collective; a read
/// through an address (data_ptr(), accessor()) does not. All of it is on one thread: operators of
/// other threads wait for nothing.
class TensorsUnderWay {
public:
    TensorsUnderWay() = default;
    ~TensorsUnderWay();
    TensorsUnderWay(const TensorsUnderWay&) = delete;
    TensorsUnderWay& operator=(const TensorsUnderWay&) = delete;

    /// `pending` writes `tensor`.
    void add(const torch::Tensor& tensor, Pending<void> pending);

    /// Waits for all. The first error since the last call, one that an operator has met included:
    /// the operator itself goes on.
    [[nodiscard]] Result<void> wait();

    /// Waits for those of every object of this thread, which keeps their errors for its wait().
    static void wait_for_all();

private:
    struct Entry {
        torch::Tensor tensor;
        Pending<void> pending;
        TensorsUnderWay* owner = nullptr;
    };
    class OfThread;

    std::optional<Error> failure_;
};

}  // namespace ddprun::worker
