#include "agent/daemon/gpu_look.hpp"

#include <csignal>
#include <optional>
#include <string>
#include <utility>

namespace ddprun::agent {

GpuLook::GpuLook(boost::asio::io_context& io, const rdzv::Limits& limits, Events events)
    : program_(io, {.on_child = [this](int pid) { events_.on_child(pid); },
                    .on_end =
                        [this](const std::optional<siginfo_t>& end) {
                            const bool are_used =
                                end && end->si_code == CLD_EXITED && end->si_status == 0;
                            events_.on_done({.generation = generation_, .are_used = are_used});
                        }}),
      limits_(limits),
      events_(std::move(events)) {}

void GpuLook::look(const LookAtGpus& order, const std::vector<int>& pids,
                   const std::shared_ptr<const void>& owner) {
    cancel();
    generation_ = order.generation;
    if (!start(order, pids, owner)) {
        cancel();
        events_.on_done({.generation = generation_, .are_used = false});
    }
}

bool GpuLook::start(const LookAtGpus& order, const std::vector<int>& pids,
                    const std::shared_ptr<const void>& owner) {
    Result<std::string> program = program_beside_us("ddprun-gpu-use");
    if (!program || program_.is_stuck()) {
        return false;
    }
    ProgramSpec spec;
    spec.command = {std::move(*program), std::to_string(order.quiet_for.count())};
    for (const int pid : pids) {
        spec.command.push_back(std::to_string(pid));
    }
    const Result<bool> is_watched = program_.start(spec, limits_.gpu_look_timeout, owner);
    return is_watched && *is_watched;
}

}  // namespace ddprun::agent
