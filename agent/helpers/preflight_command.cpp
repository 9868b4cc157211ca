#include "agent/helpers/preflight_command.hpp"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <optional>
#include <string_view>
#include <utility>

#include <boost/asio/post.hpp>

#include "base/os/start_program.hpp"

namespace ddprun::agent {

PreflightCommand::PreflightCommand(boost::asio::io_context& io, std::string command,
                                   Milliseconds timeout, Events events)
    : io_(io),
      program_(io, {.on_child = [this](int pid) { events_.on_child(pid); },
                    .on_end =
                        [this](const std::optional<siginfo_t>& end) {
                            release();
                            events_.on_done(fault_of(end, timeout_));
                        }}),
      command_(std::move(command)),
      timeout_(timeout),
      events_(std::move(events)) {}

void PreflightCommand::run() {
    if (const Result<void> started = start(); !started) {
        boost::asio::post(io_, [this, why = started.error().what] { events_.on_done(why); });
    }
}

void PreflightCommand::cancel() {
    program_.cancel();
    lifeline_.reset();
}

/// The signal of its parent's death reaches the shell alone. A process beside the command kills the
/// group of both when the lifeline ends without a word. Its own parent ends at once: a command that
/// waits for all of its children finds none that is not its own.
Result<void> PreflightCommand::start() {
    constexpr const char* kGuarded =
        R"(( (read -r word <&3 || kill -KILL 0) & ); exec 3<&-; exec /bin/sh -c "$0")";
    std::array<int, 2> ends{};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
        return system_error(errno, "cannot make a socketpair to the preflight command");
    }
    const UniqueFd its(ends[0]);
    lifeline_.reset(ends[1]);
    ProgramSpec spec;
    spec.command = {"/bin/sh", "-c", kGuarded, command_};
    spec.fds = {FdMapping{.from = its.get(), .to = 3}};
    return program_.start(spec, timeout_);
}

/// It has ended: what it has left running on purpose stays.
void PreflightCommand::release() {
    constexpr std::string_view kWord = "ended\n";
    if (lifeline_.is_open()) {
        (void)!send(lifeline_.get(), kWord.data(), kWord.size(), MSG_NOSIGNAL);
        lifeline_.reset();
    }
}

}  // namespace ddprun::agent
