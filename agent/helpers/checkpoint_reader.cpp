#include "agent/helpers/checkpoint_reader.hpp"

#include <csignal>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/read_ahead_limits.hpp"

namespace ddprun::agent {

CheckpointReader::CheckpointReader(boost::asio::io_context& io, Events events)
    : program_(io, {.on_child = [this](int pid) { events_.on_child(pid); },
                    .on_end = [](const std::optional<siginfo_t>& /*end*/) {}}),
      events_(std::move(events)) {}

void CheckpointReader::read(const std::vector<std::string>& places) {
    cancel();
    if (places.empty() || program_.is_stuck()) {
        return;
    }
    if (const Result<void> started = start(places); !started && !std::exchange(has_failed_, true)) {
        events_.say(
            fmt::format("no checkpoint is read ahead of the workers: {}", started.error().what));
    }
}

Result<void> CheckpointReader::start(const std::vector<std::string>& places) {
    Result<std::string> program = program_beside_us("ddprun-readahead");
    if (!program) {
        return program.error();
    }
    ProgramSpec spec;
    spec.command = {*std::move(program)};
    spec.command.insert(spec.command.end(), places.begin(), places.end());
    spec.dies_with_us = true;
    return program_.start(spec, ReadAheadLimits().read_ahead_timeout);
}

}  // namespace ddprun::agent
