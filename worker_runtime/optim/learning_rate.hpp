#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <torch/optim/optimizer.h>

namespace ddprun {

class TrainingState;

/// The factor of the learning rate at `step`, from 0: a line from `start_factor` to 1,
/// which it reaches at `warmup_steps` and keeps.
[[nodiscard]] double linear_warmup(std::int64_t step, std::int64_t warmup_steps,
                                   double start_factor = 0);

/// Half a cosine from 1 down to `end_factor`, which it reaches at `steps` and keeps.
[[nodiscard]] double cosine_decay(std::int64_t step, std::int64_t steps, double end_factor = 0);

struct WarmupCosine {
    std::int64_t warmup_steps = 0;
    std::int64_t total_steps = 0;  ///< the warm-up's among them
    double start_factor = 0;
    double end_factor = 0;

    /// linear_warmup(), then cosine_decay() over the rest.
    [[nodiscard]] double operator()(std::int64_t step) const;
};

/// Sets the learning rate of each of an optimizer's groups to a base rate times a function of the
/// step: that of step 0 at once, the next one's by every step(). The optimizer outlives it. One
/// thread.
class LearningRateSchedule {
public:
    using Factor = std::function<double(std::int64_t)>;

    /// The base rates are those that the optimizer has now. So it is to be made before
    /// Checkpoints::resume(), which puts rates back that a schedule has set. Throws if the
    /// optimizer has stepped or was resumed, as far as its state shows (SGD without momentum has
    /// none).
    LearningRateSchedule(torch::optim::Optimizer& optimizer, Factor factor);
    /// With the base rate of each group, whatever the optimizer has done.
    LearningRateSchedule(torch::optim::Optimizer& optimizer, Factor factor,
                         std::vector<double> base_rates);
    LearningRateSchedule(const LearningRateSchedule&) = delete;
    LearningRateSchedule& operator=(const LearningRateSchedule&) = delete;

    /// After optimizer.step(). Throws if a group has been added to the optimizer since. The first
    /// one throws if the rates are others than were set: of a resume without add_to(), after which
    /// the schedule would begin anew.
    void step();

    /// How often step() was called, in the runs before a resume as well.
    [[nodiscard]] std::int64_t position() const { return position_; }

    /// Has checkpoints hold the position as the value `<name>.position`; the rates are saved with
    /// the optimizer. This must outlive `state`'s use.
    void add_to(TrainingState& state, const std::string& name);

private:
    void check_rates_are_ours() const;
    void set_rates();

    torch::optim::Optimizer& optimizer_;
    Factor factor_;
    std::vector<double> base_rates_;  ///< by group
    std::int64_t position_ = 0;
};

}  // namespace ddprun
