#pragma once

#include <cstdint>
#include <map>
#include <string>

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include "base/result.hpp"
#include "worker_runtime/comm/process_group.hpp"

namespace ddprun {

class TrainingState;

struct GradientScalerOptions {
    double initial_scale = 65536;
    double growth_factor = 2;
    double backoff_factor = 0.5;
    /// After so many steps in a row without an overflow the scale grows.
    std::int64_t growth_interval = 2000;
    /// False: the loss is not scaled and every step is taken, say for bfloat16 or float32 in a
    /// program that can do float16 as well.
    bool enabled = true;
};

/// Keeps float16 gradients from vanishing: the loss is multiplied by a scale, the gradients are
/// divided by it before the optimizer sees them, and a step whose gradients hold an inf or NaN is
/// skipped and lowers the scale. As Python's torch.amp.GradScaler, by the same kernels. In
/// addition the group agrees whether a gradient was not finite, so that all ranks take a step or
/// none does, and have the same scale. One thread.
///
/// One iteration: scale() the loss, backward, unscale() if the gradients are read or clipped,
/// step() for each optimizer, one update(). Every rank calls unscale() and step() alike: the first
/// of them for an optimizer is a collective.
class GradientScaler {
public:
    explicit GradientScaler(ProcessGroup group, GradientScalerOptions options = {});
    GradientScaler(const GradientScaler&) = delete;
    GradientScaler& operator=(const GradientScaler&) = delete;

    /// `loss` times the scale, in the same graph.
    [[nodiscard]] torch::Tensor scale(const torch::Tensor& loss) const;

    /// Divides the gradients of `optimizer` by the scale, in place, to be clipped or read.
    /// An error, and nothing changed, if that has been done since the last update(), or if a
    /// gradient is float16 itself: parameters of mixed precision are float32. An error of the group
    /// leaves the gradients divided and the step undecided.
    [[nodiscard]] Result<void> unscale(torch::optim::Optimizer& optimizer);

    /// unscale(), if it was not called; then optimizer.step(), unless a gradient on any rank is not
    /// finite. Returns whether it stepped, the same on every rank.
    [[nodiscard]] Result<bool> step(torch::optim::Optimizer& optimizer);

    /// Ends the iteration: the scale shrinks if any optimizer's gradients were not finite, or grows
    /// when it is time. An error if no step was made since the last one.
    [[nodiscard]] Result<void> update();

    /// 1 if it is not enabled. On GPUs this waits for the GPU.
    [[nodiscard]] double current_scale() const { return scale_.item<float>(); }

    /// Has checkpoints hold the scale and the steps since it grew, as the tensors
    /// `extra.<name>.scale` and `extra.<name>.growth_tracker`. This must outlive `state`'s use.
    void add_to(TrainingState& state, const std::string& name);

private:
    enum class Stage { Unscaled, Stepped };
    struct Seen {
        Stage stage;
        torch::Tensor found_inf;  ///< one float32 on the scale's device: 0, or 1 if any rank has
    };

    ProcessGroup group_;
    GradientScalerOptions options_;
    torch::Tensor scale_;                                  ///< float32, on the network's device
    torch::Tensor growth_tracker_;                         ///< int32: steps since the last change
    std::map<const torch::optim::Optimizer*, Seen> seen_;  ///< since the last update()
};

}  // namespace ddprun
