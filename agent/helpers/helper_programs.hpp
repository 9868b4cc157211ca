#pragma once

#include <functional>
#include <string>

#include <boost/asio/io_context.hpp>

#include "agent/contract/inputs.hpp"
#include "agent/contract/supervisor_options.hpp"
#include "agent/gpu/gpu_helper.hpp"
#include "agent/gpu/gpu_look.hpp"
#include "agent/gpu/gpu_memory_wait.hpp"
#include "agent/helpers/preflight_command.hpp"
#include "agent/helpers/stack_saver.hpp"

namespace ddprun::agent {

/// The programs that an agent runs for itself, each with its time. Owned and called by its thread.
struct HelperPrograms {
    struct Events {
        std::function<void(const std::string& line)> say;
        /// A child of this process that is no worker's was started.
        std::function<void(int pid)> on_child;
        /// Takes a program's finding, or the news that it has done its work.
        std::function<void(Input)> on_input;
    };

    HelperPrograms(boost::asio::io_context& io, const SupervisorOptions& options,
                   const std::string& preflight_command, Milliseconds preflight_timeout,
                   const Events& events);

    /// Workers are about to start.
    void begin_generation();

    /// The findings about these workers are of no use any more.
    void end_generation();

    /// Nothing is answered any more.
    void stop();

    bool awaits_gpu_memory;
    GpuHelper gpu_helper;
    StackSaver stacks;
    GpuLook gpus;
    GpuMemoryWait gpu_memory;
    PreflightCommand preflight;
};

}  // namespace ddprun::agent
