#include "agent/notices/command_notice.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <optional>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <fmt/format.h>

#include "base/os/give_to_loop.hpp"
#include "base/os/start_program.hpp"
#include "base/os/unix_time.hpp"

namespace ddprun::agent {

CommandNotice::CommandNotice(boost::asio::io_context& io, const Limits& limits, std::string command,
                             NoticeEvents events)
    : limits_(limits),
      command_(std::move(command)),
      events_(std::move(events)),
      program_(io, {.on_child = [this](int pid) { events_.on_child(pid); },
                    .on_end =
                        [this](const std::optional<siginfo_t>& end) {
                            if (end) {
                                has_ended(*end);
                            }
                        }}),
      output_(io),
      pause_(io, [this] { start(); }) {}

void CommandNotice::start() {
    if (const Result<void> begun = begin(); !begun) {
        say_once(begun.error().what);
        start_again_later();
    }
}

void CommandNotice::stop() {
    pause_.set(std::nullopt);
    boost::system::error_code ignored;
    output_.close(ignored);
    program_.cancel();
}

Result<void> CommandNotice::begin() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
        return ddprun::system_error(errno, "a pipe for the drain command");
    }
    UniqueFd from(ends[0]);
    const UniqueFd into(ends[1]);
    boost::system::error_code ignored;
    output_.close(ignored);
    text_.clear();
    if (Result<void> given = give_to_loop(output_, std::move(from)); !given) {
        return given;
    }
    ProgramSpec spec;
    spec.command = {"/bin/sh", "-c", command_};
    spec.fds = {FdMapping{.from = into.get(), .to = STDOUT_FILENO}};
    Result<void> started = program_.start(spec, std::nullopt);
    if (started) {
        read_on();
    }
    return started;
}

void CommandNotice::read_on() {
    output_.async_read_some(boost::asio::buffer(buffer_),
                            [this](boost::system::error_code failure, std::size_t count) {
                                if (!failure) {
                                    text_.append(buffer_.data(), count);
                                    take_lines();
                                    read_on();
                                } else if (failure == boost::asio::error::eof) {
                                    text_ += '\n';
                                    take_lines();
                                }
                            });
}

/// Lines without a deadline mean nothing.
void CommandNotice::take_lines() {
    for (std::size_t end = 0; (end = text_.find('\n')) != std::string::npos;) {
        const std::optional<Instant> deadline =
            deadline_in(std::string_view(text_).substr(0, end), read_clocks());
        text_.erase(0, end + 1);
        if (deadline) {
            events_.on_notice(
                LeaveNotice{.why = fmt::format("the drain command '{}' says so", command_),
                            .gone_at = deadline});
        }
    }
    if (text_.size() > limits_.drain_text_bytes_max) {
        text_.clear();
    }
}

void CommandNotice::has_ended(const siginfo_t& end) {
    if (has_succeeded(end)) {
        events_.on_notice(
            LeaveNotice{.why = fmt::format("the drain command '{}' ended with 0", command_),
                        .gone_at = std::nullopt});
        return;
    }
    if (end.si_code != CLD_EXITED || was_not_executed(end)) {
        say_once(end_text(end));
    }
    start_again_later();
}

void CommandNotice::say_once(const std::string& what) {
    if (std::exchange(said_, what) != what) {
        events_.say(fmt::format("--drain-on cmd:{}: {}; it is started again every {} s", command_,
                                what, limits_.drain_command_every.count() / 1000));
    }
}

void CommandNotice::start_again_later() {
    pause_.set(clock_now() + limits_.drain_command_every);
}

}  // namespace ddprun::agent
