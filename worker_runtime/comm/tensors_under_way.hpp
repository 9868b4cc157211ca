#pragma once

#include <memory>
#include <optional>

#include <torch/types.h>

#include "base/result.hpp"
#include "worker_runtime/comm/pending.hpp"

namespace ddprun::worker {

/// Tensors that collectives still write while the training goes on. The first operator of LibTorch
/// that takes one of them, or a tensor that shares its memory, waits for its collective, if it is
/// on the thread that added it. A read through an address waits for nothing: data_ptr(),
/// accessor(), torch::save().
class TensorsUnderWay {
public:
    TensorsUnderWay() = default;
    /// Waits, unless an exception unwinds the stack.
    ~TensorsUnderWay();
    TensorsUnderWay(const TensorsUnderWay&) = delete;
    TensorsUnderWay& operator=(const TensorsUnderWay&) = delete;

    /// `pending` writes `tensor`.
    void add(const torch::Tensor& tensor, Pending<void> pending);

    /// Waits for all that this thread has added. The first error since the last call: also that of
    /// a collective for which an operator has waited. The operator has read what was there.
    [[nodiscard]] Result<void> wait();

    /// Waits for what this thread has added to any object. The first error of these waits; wait()
    /// of the object reports it, too.
    [[nodiscard]] static Result<void> wait_for_all();

private:
    struct Entry;
    class OfThread;

    /// The first error since the last wait(). Entries hold it, too.
    std::shared_ptr<std::optional<Error>> failure_ = std::make_shared<std::optional<Error>>();
};

}  // namespace ddprun::worker
