#include "agent/gpu/gpu_look.hpp"

#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace ddprun::agent {

GpuLook::GpuLook(GpuHelper& helper, const Limits& limits, std::function<void(GpusLooked)> on_done)
    : helper_(helper), limits_(limits), on_done_(std::move(on_done)) {}

void GpuLook::look(const LookAtGpus& order, const std::map<LocalRank, int>& pids) {
    std::string question = fmt::format("use {}", order.quiet_for.count());
    for (const auto& [local_rank, pid] : pids) {
        if (pid != 0) {  // It is not known, for want of descriptors.
            question += fmt::format(" {}", pid);
        }
    }
    const std::uint64_t number = ++looks_;
    helper_.ask(question, limits_.gpu_look_timeout,
                [this, number, generation = order.generation](std::optional<std::string> answer) {
                    if (number == looks_) {
                        on_done_({.generation = generation, .are_used = answer == "used"});
                    }
                });
}

}  // namespace ddprun::agent
