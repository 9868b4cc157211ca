#include "agent/core/standby_slots.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include <fmt/format.h>

#include "agent/core/worker_group.hpp"
#include "worker_runtime/contract/worker_environment.hpp"

namespace ddprun::agent {

namespace {

/// The interfaces are known when the link is; what reads them does so when ranks connect.
constexpr std::array kOfGeneration{
    worker_variable::kRank.key,
    worker_variable::kWorldSize.key,
    worker_variable::kGroupRank.key,
    worker_variable::kGroupWorldSize.key,
    worker_variable::kRoleRank.key,
    worker_variable::kRoleWorldSize.key,
    worker_variable::kMasterAddr.key,
    worker_variable::kMasterPort.key,
    worker_variable::kRestartCount.key,
    worker_variable::kMaxRestarts.key,
    worker_variable::kErrorFile.key,
    worker_variable::kUseAgentStore.key,
    worker_variable::kGeneration.key,
    worker_variable::kLocalAddress.key,
    worker_variable::kStartReason.key,
    worker_variable::kTargetWorldSize.key,
    worker_variable::kPage.key,
    std::string_view("NCCL_SOCKET_IFNAME"),
    std::string_view("GLOO_SOCKET_IFNAME"),
};

std::map<std::string, std::string> constant_part(const WorkerSpec& worker) {
    std::map<std::string, std::string> variables(worker.environment.begin(),
                                                 worker.environment.end());
    std::erase_if(variables, [](const auto& one) { return is_of_generation(one.first); });
    return variables;
}

}  // namespace

StandbySlots::StandbySlots(const Limits& limits, int slots, WarmOptions options)
    : limits_(limits),
      modules_(std::move(options.modules)),
      python_(options.trial.empty() ? std::string() : options.trial.front()),
      slots_(static_cast<std::size_t>(slots)) {}

void StandbySlots::begin(Instant now) {
    prepare_at_ = now + limits_.standby_after;
}

void StandbySlots::is_here(LocalRank slot) {
    const auto* preparing = std::get_if<Preparing>(&at(slot).state);
    if (preparing != nullptr && preparing->is_trial) {
        is_tried_ = true;
        at(slot).state = Ending{};
    }
}

void StandbySlots::is_ready(LocalRank slot) {
    if (std::holds_alternative<Preparing>(at(slot).state)) {
        at(slot).state = Ready{};
    }
}

void StandbySlots::is_unfit(LocalRank slot, const std::string& module, const std::string& why) {
    const auto found = std::find(modules_.begin(), modules_.end(), module);
    if (!std::holds_alternative<Preparing>(at(slot).state) || found == modules_.end()) {
        return;  // Its end says the rest.
    }
    at(slot).state = Ending{};
    lines_.push_back(
        fmt::format("--warm: {} and what follows it is not imported beforehand: {}", module, why));
    modules_.erase(found, modules_.end());
}

void StandbySlots::has_ended(LocalRank slot) {
    const auto* preparing = std::get_if<Preparing>(&at(slot).state);
    if (preparing != nullptr && preparing->is_trial) {
        lines_.push_back(
            fmt::format("--warm: {} has no ddprun package, so that workers start "
                        "cold, with all their imports; {} -m pip install ddprun",
                        python_, python_));
        modules_.clear();
    } else if (preparing != nullptr) {
        fail(slot, "it ended while it was prepared");
    } else if (std::holds_alternative<Ready>(at(slot).state)) {
        fail(slot, "it ended while it waited");
    }
    at(slot).state = None{};
}

void StandbySlots::are_lost() {
    for (Slot& slot : slots_) {
        slot.state = None{};
    }
}

void StandbySlots::fail(LocalRank slot, const std::string& why) {
    if (++at(slot).failures == limits_.standby_failures_max) {
        lines_.push_back(fmt::format("--warm: local rank {} has no standby any more: {}, {} times",
                                     slot.value(), why, limits_.standby_failures_max));
    }
}

std::vector<LocalRank> StandbySlots::take() {
    std::vector<LocalRank> taken;
    for (std::size_t i = 0; i < slots_.size(); ++i) {
        if (std::holds_alternative<Ready>(slots_[i].state)) {
            taken.emplace_back(static_cast<int>(i));
        }
    }
    if (!taken.empty()) {
        for (Slot& slot : slots_) {
            slot = Slot{.state = None{}, .failures = slot.failures};
        }
        for (const LocalRank slot : taken) {
            at(slot).failures = 0;
        }
    }
    return taken;
}

std::string StandbySlots::why_not(LocalRank slot) const {
    if (is_off() || at(slot).failures >= limits_.standby_failures_max) {
        return {};  // It has been said.
    }
    return std::holds_alternative<None>(at(slot).state) ? "it had none yet" : "it was not ready";
}

bool StandbySlots::is_preparing() const {
    return std::any_of(slots_.begin(), slots_.end(), [](const Slot& slot) {
        return std::holds_alternative<Preparing>(slot.state) ||
               std::holds_alternative<Ending>(slot.state);
    });
}

void StandbySlots::settle(Instant now, StandbyEffects& out) {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
        const LocalRank slot(static_cast<int>(i));
        auto* preparing = std::get_if<Preparing>(&slots_[i].state);
        if (preparing != nullptr && preparing->until && now >= *preparing->until) {
            fail(slot, fmt::format("it was not ready after {} ms",
                                   limits_.standby_ready_timeout.count()));
            slots_[i].state = Ending{};
            out.emplace_back(DiscardStandby{slot});
        }
    }
    prepare_next(now, out);
    for (std::string& line : lines_) {
        out.emplace_back(Say{std::move(line)});
    }
    lines_.clear();
}

void StandbySlots::prepare_next(Instant now, StandbyEffects& out) {
    if (is_off() || !prepare_at_ || now < *prepare_at_ || is_preparing()) {
        return;
    }
    const Instant until = now + limits_.standby_ready_timeout;
    if (!is_tried_) {
        slots_.front().state = Preparing{.until = until, .is_trial = true};
        out.emplace_back(TryStandby{});
        return;
    }
    for (std::size_t i = 0; i < slots_.size(); ++i) {
        if (std::holds_alternative<None>(slots_[i].state) &&
            slots_[i].failures < limits_.standby_failures_max) {
            slots_[i].state = Preparing{.until = until};
            out.emplace_back(PrepareStandby{LocalRank(static_cast<int>(i)), modules_});
            return;
        }
    }
}

std::optional<Instant> StandbySlots::next_deadline() const {
    std::optional<Instant> next;
    for (const Slot& slot : slots_) {
        if (const auto* preparing = std::get_if<Preparing>(&slot.state)) {
            next = preparing->until;  // Of one at a time.
        }
    }
    if (next || is_off() || !prepare_at_ || is_preparing()) {
        return next;
    }
    const bool is_any_missing = std::any_of(slots_.begin(), slots_.end(), [this](const Slot& slot) {
        return std::holds_alternative<None>(slot.state) &&
               slot.failures < limits_.standby_failures_max;
    });
    return is_any_missing ? prepare_at_ : next;
}

bool is_of_generation(const std::string& variable) {
    return std::find(kOfGeneration.begin(), kOfGeneration.end(), variable) != kOfGeneration.end();
}

std::vector<std::string> variables_of_generation() {
    return {kOfGeneration.begin(), kOfGeneration.end()};
}

std::vector<WorkerSpec> standbys_of(const SupervisorOptions& options) {
    const WorkerGroup nobody(rdzv::Start{}, options.identity.slots);
    std::vector<WorkerSpec> standbys = start_of(nobody, options, {}, {}).workers;
    for (WorkerSpec& standby : standbys) {
        std::erase_if(standby.environment,
                      [](const auto& one) { return is_of_generation(one.first); });
    }
    return standbys;
}

bool can_become(const WorkerSpec& standby, const WorkerSpec& worker) {
    return standby.command == worker.command && standby.cpus == worker.cpus &&
           standby.is_bystander == worker.is_bystander &&
           constant_part(standby) == constant_part(worker);
}

}  // namespace ddprun::agent
