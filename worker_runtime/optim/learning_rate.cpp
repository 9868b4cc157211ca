#include "worker_runtime/optim/learning_rate.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <utility>

#include "worker_runtime/state/training_state.hpp"

namespace ddprun {

double linear_warmup(std::int64_t step, std::int64_t warmup_steps, double start_factor) {
    if (step >= warmup_steps) {
        return 1;
    }
    const double part = static_cast<double>(step) / static_cast<double>(warmup_steps);
    return start_factor + (1 - start_factor) * part;
}

double cosine_decay(std::int64_t step, std::int64_t steps, double end_factor) {
    if (step >= steps) {
        return end_factor;
    }
    const double part = static_cast<double>(step) / static_cast<double>(steps);
    return end_factor + (1 - end_factor) * (1 + std::cos(std::numbers::pi * part)) / 2;
}

double WarmupCosine::operator()(std::int64_t step) const {
    return step < warmup_steps
               ? linear_warmup(step, warmup_steps, start_factor)
               : cosine_decay(step - warmup_steps, total_steps - warmup_steps, end_factor);
}

namespace {

/// Those that the optimizer has, unless a schedule may have set them already.
std::vector<double> rates_before_the_first_step(torch::optim::Optimizer& optimizer) {
    TORCH_CHECK(optimizer.state().empty(),
                "LearningRateSchedule: the optimizer has stepped or was resumed, so that its "
                "learning rates may be a schedule's already; make the schedule before the first "
                "step and before Checkpoints::resume(), or give it the base rates");
    std::vector<double> rates;
    for (const auto& group : optimizer.param_groups()) {
        rates.push_back(group.options().get_lr());
    }
    return rates;
}

}  // namespace

LearningRateSchedule::LearningRateSchedule(torch::optim::Optimizer& optimizer, Factor factor)
    : LearningRateSchedule(optimizer, std::move(factor), rates_before_the_first_step(optimizer)) {}

LearningRateSchedule::LearningRateSchedule(torch::optim::Optimizer& optimizer, Factor factor,
                                           std::vector<double> base_rates)
    : optimizer_(optimizer), factor_(std::move(factor)), base_rates_(std::move(base_rates)) {
    set_rates();
}

void LearningRateSchedule::step() {
    if (position_ == 0) {
        check_rates_are_ours();
    }
    ++position_;
    set_rates();
}

void LearningRateSchedule::add_to(TrainingState& state, const std::string& name) {
    state.add(name + ".position", position_);
}

void LearningRateSchedule::check_rates_are_ours() const {
    const auto& groups = optimizer_.param_groups();
    const double factor = factor_(position_);
    for (std::size_t i = 0; i < std::min(groups.size(), base_rates_.size()); ++i) {
        const double rate = groups[i].options().get_lr();
        TORCH_CHECK(rate == base_rates_[i] * factor, "LearningRateSchedule: group ", i,
                    " of the optimizer has the learning rate ", rate, ", the schedule has set ",
                    base_rates_[i] * factor,
                    ": a resume has put it back without the schedule's position, or something else "
                    "sets it; call add_to() before Checkpoints::resume()");
    }
}

void LearningRateSchedule::set_rates() {
    auto& groups = optimizer_.param_groups();
    TORCH_CHECK(groups.size() == base_rates_.size(), "LearningRateSchedule: the optimizer has ",
                groups.size(), " groups, the schedule was made for ", base_rates_.size(),
                "; make it after the last add_param_group()");
    const double factor = factor_(position_);
    for (std::size_t i = 0; i < groups.size(); ++i) {
        groups[i].options().set_lr(base_rates_[i] * factor);
    }
}

}  // namespace ddprun
