#include "agent/gpu/gpu_helper.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/read_until.hpp>

#include "base/os/start_program.hpp"
#include "base/os/unique_fd.hpp"
#include "base/os/unix_time.hpp"
#include "base/watch_limits.hpp"

namespace ddprun::agent {

GpuHelper::GpuHelper(boost::asio::io_context& io, std::function<void(int pid)> on_child)
    : io_(io),
      program_(io, {.on_child = std::move(on_child),
                    .on_end = [this](const std::optional<siginfo_t>& /*end*/) { fail(); }}),
      deadline_(io, [this] { fail(); }) {}

void GpuHelper::ask(const std::string& question, Milliseconds timeout, Answer on_answer) {
    if ((!connection_ && start().has_error()) || !send(question + "\n")) {
        fail();
        on_answer(std::nullopt);
        return;
    }
    questions_.push_back({clock_now() + timeout, std::move(on_answer)});
    set_deadline();
    if (questions_.size() == 1) {
        read();
    }
}

Result<void> GpuHelper::start() {
    Result<std::string> program = path_beside_us("ddprun-gpu-use");
    if (!program) {
        return program.error();
    }
    if (program_.is_stuck()) {
        return Error{ErrorCode::System, "the last one does not end"};
    }
    std::array<int, 2> fds{};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()) != 0) {
        return system_error(errno, "cannot make a socketpair");
    }
    UniqueFd ours(fds[0]);
    const UniqueFd its(fds[1]);
    ProgramSpec spec;
    spec.command = {std::move(*program)};
    spec.may_be_slow = true;
    spec.fds = {FdMapping{.from = its.get(), .to = STDIN_FILENO},
                FdMapping{.from = its.get(), .to = STDOUT_FILENO}};
    const Result<void> started = program_.start(spec, std::nullopt);
    if (!started) {
        return started;
    }
    const boost::asio::local::stream_protocol protocol;
    connection_ = std::make_shared<Connection>(Connection{Socket(io_, protocol, ours.release())});
    return {};
}

/// A question has its place in the socket's buffer, unless the earlier ones are not read.
bool GpuHelper::send(const std::string& line) {
    const ssize_t sent = ::send(connection_->socket.native_handle(), line.data(), line.size(),
                                MSG_DONTWAIT | MSG_NOSIGNAL);
    return sent == static_cast<ssize_t>(line.size());
}

/// A later question may have less time than an earlier one.
void GpuHelper::set_deadline() {
    const auto first = std::ranges::min_element(questions_, {}, &Question::until);
    deadline_.set(first == questions_.end() ? std::nullopt : std::optional(first->until));
}

void GpuHelper::read() {
    auto connection = connection_;
    boost::asio::async_read_until(
        connection->socket,
        boost::asio::dynamic_buffer(connection->received, WatchLimits().gpu_answer_bytes_max), '\n',
        [this, connection](boost::system::error_code failure, std::size_t size) {
            if (connection != connection_) {
                return;
            }
            if (failure) {
                fail();
                return;
            }
            std::string line = connection->received.substr(0, size - 1);
            connection->received.erase(0, size);
            answer_first(std::move(line));
        });
}

void GpuHelper::answer_first(std::string line) {
    const Question question = std::move(questions_.front());
    questions_.pop_front();
    set_deadline();
    if (!questions_.empty()) {
        read();
    }
    question.on_answer(std::move(line));
}

void GpuHelper::fail() {
    for (const Question& question : give_up()) {
        question.on_answer(std::nullopt);
    }
}

void GpuHelper::stop() {
    (void)give_up();
}

std::deque<GpuHelper::Question> GpuHelper::give_up() {
    program_.cancel();
    connection_.reset();
    deadline_.set(std::nullopt);
    return std::exchange(questions_, {});
}

}  // namespace ddprun::agent
