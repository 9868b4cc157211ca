#include "agent/helpers/helper_programs.hpp"

#include <utility>

namespace ddprun::agent {

HelperPrograms::HelperPrograms(boost::asio::io_context& io, const SupervisorOptions& options,
                               const std::string& preflight_command, Milliseconds preflight_timeout,
                               const Events& events)
    : awaits_gpu_memory(options.awaits_gpu_memory),
      gpu_helper(io, events.on_child),
      stacks(io, options.limits, options.command.front(),
             {.say = events.say,
              .on_child = events.on_child,
              .on_done = [on_input = events.on_input](
                             Generation generation) { on_input(StacksSaved{generation}); }}),
      gpus(gpu_helper, options.limits,
           [on_input = events.on_input](GpusLooked looked) { on_input(looked); }),
      gpu_memory(io, gpu_helper, options.limits,
                 {.say = events.say,
                  .on_done = [on_input = events.on_input] { on_input(GpuMemoryAwaited{}); }}),
      preflight(
          io, preflight_command, preflight_timeout,
          {.on_child = events.on_child, .on_done = [on_input = events.on_input](std::string why) {
               on_input(PreflightDone{std::move(why)});
           }}) {}

void HelperPrograms::begin_generation() {
    if (awaits_gpu_memory) {
        gpu_memory.remember();
    }
}

void HelperPrograms::end_generation() {
    stacks.cancel();
    gpus.cancel();
}

void HelperPrograms::stop() {
    preflight.cancel();
    gpu_memory.cancel();
    gpu_helper.stop();
}

}  // namespace ddprun::agent
