#include "agent/helpers/checkpoint_reader.hpp"

#include <chrono>
#include <csignal>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/read_ahead_limits.hpp"

namespace ddprun::agent {

CheckpointReader::CheckpointReader(boost::asio::io_context& io, Events events)
    : program_(
          io,
          {.on_child = [this](int pid) { events_.on_child(pid); },
           .on_end =
               [this](const std::optional<siginfo_t>& end) {
                   is_reading_ = false;
                   if (end && was_not_executed(*end)) {
                       say_failure("ddprun-readahead cannot be executed; install it beside ddprun");
                   }
               }}),
      timer_(io, [this] { begin(); }),
      events_(std::move(events)) {}

void CheckpointReader::read_soon(std::vector<std::string> places) {
    if (!places.empty()) {
        places_ = std::move(places);
    }
    if (!places_.empty()) {
        is_wanted_ = true;
        timer_.set(std::chrono::steady_clock::now() + ReadAheadLimits().read_ahead_after);
    }
}

void CheckpointReader::read_now() {
    if (is_wanted_) {
        timer_.set(std::chrono::steady_clock::now());
    }
}

void CheckpointReader::cancel() {
    is_wanted_ = false;
    timer_.set(std::nullopt);
    is_reading_ = false;
    program_.cancel();
}

/// One at a time: of a file system that hangs no restart leaves another process behind.
void CheckpointReader::begin() {
    is_wanted_ = false;
    if (is_reading_ || program_.is_stuck()) {
        return;
    }
    const Result<void> started = start();
    is_reading_ = started.has_value();
    if (!started) {
        say_failure(started.error().what);
    }
}

void CheckpointReader::say_failure(const std::string& why) {
    if (!std::exchange(has_failed_, true)) {
        events_.say(fmt::format("no checkpoint is read ahead of the workers: {}", why));
    }
}

Result<void> CheckpointReader::start() {
    Result<std::string> program = path_beside_us("ddprun-readahead");
    if (!program) {
        return program.error();
    }
    ProgramSpec spec;
    spec.command = {*std::move(program)};
    spec.command.insert(spec.command.end(), places_.begin(), places_.end());
    spec.may_be_slow = true;
    return program_.start(spec, ReadAheadLimits().read_ahead_timeout);
}

}  // namespace ddprun::agent
