#include "agent/helpers/stack_saver.hpp"

#include <optional>
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
        events_.say(
            fmt::format("Python's stacks are not among them: there is no py-spy beside {} nor in "
                        "PATH; get it with: {} -m pip install py-spy",
                        worker_program_, worker_program_));
    }
}

Result<void> StackSaver::start(const SaveStacks& order, const std::map<LocalRank, int>& pids) {
    Result<std::string> program = program_beside_us(std::string{kStacksProgram});
    if (!program) {
        return program.error();
    }
    // What it gives up by itself is told in the files.
    const Milliseconds own_timeout = limits_.stacks_timeout - limits_.stacks_timeout / 10;
    ProgramSpec spec;
    spec.command = {std::move(*program), order.folder, std::to_string(own_timeout.count()),
                    std::to_string(limits_.stacks_bytes_max), worker_program_};
    for (const LocalRank local_rank : order.workers) {
        if (const auto pid = pids.find(local_rank); pid != pids.end()) {
            spec.command.push_back(
                fmt::format("{}:{}", order.base_rank.value() + local_rank.value(), pid->second));
        }
    }
    return program_.start(spec, limits_.stacks_timeout);
}

}  // namespace ddprun::agent
