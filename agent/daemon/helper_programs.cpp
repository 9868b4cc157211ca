#include "agent/daemon/helper_programs.hpp"

#include <utility>

namespace ddprun::agent {

HelperPrograms::HelperPrograms(boost::asio::io_context& io, const rdzv::Limits& limits,
                               const std::string& preflight_command, Milliseconds preflight_timeout,
                               const Events& events)
    : stacks(io, limits,
             {.say = events.say,
              .on_child = events.on_child,
              .on_done = [on_input = events.on_input](
                             Generation generation) { on_input(StacksSaved{generation}); }}),
      gpus(io, limits,
           {.on_child = events.on_child,
            .on_done = [on_input = events.on_input](GpusLooked looked) { on_input(looked); }}),
      preflight(
          io, preflight_command, preflight_timeout,
          {.on_child = events.on_child, .on_done = [on_input = events.on_input](std::string why) {
               on_input(PreflightDone{std::move(why)});
           }}) {}

}  // namespace ddprun::agent
