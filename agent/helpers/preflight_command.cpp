#include "agent/helpers/preflight_command.hpp"

#include <chrono>
#include <csignal>
#include <optional>
#include <utility>

#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "base/signal_name.hpp"

namespace ddprun::agent {

namespace {

/// What an end says about the machine; empty: that it is fit.
std::string fault_of(const siginfo_t& end) {
    if (end.si_code != CLD_EXITED) {
        return "was ended by " + signal_name(end.si_status);
    }
    return end.si_status == 0 ? "" : fmt::format("exited with code {}", end.si_status);
}

std::string late_text(Milliseconds timeout) {
    return fmt::format("took longer than {:g} s", std::chrono::duration<double>(timeout).count());
}

}  // namespace

PreflightCommand::PreflightCommand(boost::asio::io_context& io, std::string command,
                                   Milliseconds timeout, Events events)
    : io_(io),
      program_(io, {.on_child = [this](int pid) { events_.on_child(pid); },
                    .on_end =
                        [this](const std::optional<siginfo_t>& end) {
                            events_.on_done(end ? fault_of(*end) : late_text(timeout_));
                        }}),
      command_(std::move(command)),
      timeout_(timeout),
      events_(std::move(events)) {}

void PreflightCommand::run() {
    if (const Result<void> started = start(); !started) {
        boost::asio::post(io_, [this, why = started.error().what] { events_.on_done(why); });
    }
}

Result<void> PreflightCommand::start() {
    ProgramSpec spec;
    spec.command = {"/bin/sh", "-c", command_};
    return program_.start(spec, timeout_);
}

}  // namespace ddprun::agent
