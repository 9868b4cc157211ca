#pragma once

#include <functional>
#include <string>

#include <boost/asio/io_context.hpp>

#include "agent/core/supervisor.hpp"
#include "agent/daemon/gpu_look.hpp"
#include "agent/daemon/preflight_command.hpp"
#include "agent/daemon/stack_saver.hpp"
#include "rendezvous/protocol/limits.hpp"

namespace ddprun::agent {

/// The programs that an agent runs for itself, each with its time. Owned and called by its thread.
struct HelperPrograms {
    struct Events {
        std::function<void(const std::string& line)> say;
        /// A child of this process that is no worker's was started.
        std::function<void(int pid)> on_child;
        /// What a program has found out, or that it has done its work.
        std::function<void(Input)> on_input;
    };

    HelperPrograms(boost::asio::io_context& io, const rdzv::Limits& limits,
                   const std::string& preflight_command, Milliseconds preflight_timeout,
                   const Events& events);

    StackSaver stacks;
    GpuLook gpus;
    PreflightCommand preflight;
};

}  // namespace ddprun::agent
