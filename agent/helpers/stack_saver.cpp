#include "agent/helpers/stack_saver.hpp"

#include <utility>

#include <fmt/format.h>

#include "agent/process/stacks_program.hpp"

namespace ddprun::agent {

StackSaver::StackSaver(boost::asio::io_context& io, const Limits& limits, std::string program,
                       Events events)
    : program_(io, {.on_child = [this](int pid) { events_.on_child(pid); },
                    .on_end =
                        [this](const std::optional<siginfo_t>& end) {
                            say_how_it_ended(end);
                            events_.on_done(generation_);
                        }}),
      limits_(limits),
      worker_program_(std::move(program)),
      events_(std::move(events)) {}

void StackSaver::save(const SaveStacks& order, const std::map<LocalRank, int>& pids) {
    cancel();
    generation_ = order.generation;
    if (order.folder.empty()) {
        events_.on_done(generation_);
        return;
    }
    if (const Result<void> started = start(order, pids); !started) {
        events_.say(fmt::format("no stacks are saved: {}", started.error().what));
        events_.on_done(generation_);
    }
}

void StackSaver::say_how_it_ended(const std::optional<siginfo_t>& end) {
    if (!end) {
        events_.say("saving the workers' stacks took too long; what is there is kept");
    } else if (end->si_code == CLD_EXITED && end->si_status == kStacksWithoutPySpy) {
        events_.say(no_py_spy_text(worker_program_));
    } else if (was_not_executed(*end)) {
        events_.say(
            fmt::format("no stacks are saved: {} cannot be executed; install it beside ddprun",
                        kStacksProgram));
    }
}

Result<void> StackSaver::start(const SaveStacks& order, const std::map<LocalRank, int>& pids) {
    StacksOrder stacks{.folder = order.folder,
                       .timeout = limits_.stacks_timeout,
                       .bytes_max = limits_.stacks_bytes_max,
                       .program = worker_program_};
    for (const LocalRank local_rank : order.workers) {
        if (const auto pid = pids.find(local_rank); pid != pids.end()) {
            stacks.workers.emplace_back(order.base_rank.value() + local_rank.value(), pid->second);
        }
    }
    Result<std::vector<std::string>> command = stacks_command(stacks);
    if (!command) {
        return command.error();
    }
    ProgramSpec spec;
    spec.command = *std::move(command);
    spec.may_be_slow = true;
    return program_.start(spec, limits_.stacks_timeout);
}

}  // namespace ddprun::agent
