#include "agent/daemon/prepare_output.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <utility>

#include "base/os/give_to_loop.hpp"

namespace ddprun::agent {

PrepareOutput::PrepareOutput(boost::asio::io_context& io, const std::string& prefix,
                             std::size_t line_bytes_max, Sinks sinks)
    : pipe_(io), splitter_(with_prefix(prefix), line_bytes_max), sinks_(std::move(sinks)) {}

Result<UniqueFd> PrepareOutput::open() {
    int ends[2] = {-1, -1};
    if (::pipe2(ends, O_CLOEXEC) != 0) {
        return system_error(errno, "making the pipe of the prepare command");
    }
    UniqueFd ours(ends[0]);
    UniqueFd theirs(ends[1]);
    // Only our end: programs expect that writing waits.
    if (::fcntl(ours.get(), F_SETFL, O_NONBLOCK) != 0) {
        return system_error(errno, "making the prepare command's pipe non-blocking");
    }
    if (const Result<void> given = give_to_loop(pipe_, std::move(ours)); !given) {
        return given.error();
    }
    read_next();
    return theirs;
}

void PrepareOutput::read_next() {
    pipe_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                     [this](const boost::system::error_code& error) {
                         // One read for each turn of the loop: beats have theirs between them.
                         if (error || !pipe_.is_open()) {
                             return;
                         }
                         if (std::optional<std::string> bytes = read_some()) {
                             show_lines();
                             sinks_.log(std::move(*bytes), [this] { read_on(); });
                         }
                     });
}

/// Unless the rest has been read meanwhile.
void PrepareOutput::read_on() {
    if (pipe_.is_open()) {
        read_next();
    }
}

std::optional<std::string> PrepareOutput::read_some() {
    for (;;) {
        const ssize_t got = ::read(pipe_.native_handle(), buffer_.data(), buffer_.size());
        if (got > 0) {
            const std::string_view bytes(buffer_.data(), static_cast<std::size_t>(got));
            splitter_.feed(bytes, lines_);
            return std::string(bytes);
        }
        if (got < 0 && errno == EINTR) {
            continue;
        }
        return got < 0 && errno == EAGAIN ? std::optional(std::string()) : std::nullopt;
    }
}

void PrepareOutput::finish() {
    if (!pipe_.is_open()) {
        return;
    }
    boost::system::error_code ignored;
    pipe_.cancel(ignored);
    for (std::string bytes = read_some().value_or(""); !bytes.empty();
         bytes = read_some().value_or("")) {
        sinks_.log(std::move(bytes), [] {});
    }
    splitter_.finish(lines_);
    show_lines();
    pipe_.close(ignored);
}

void PrepareOutput::show_lines() {
    std::size_t start = 0;
    for (std::size_t end = lines_.find('\n'); end != std::string::npos;
         end = lines_.find('\n', start)) {
        sinks_.show(lines_.substr(start, end - start));
        start = end + 1;
    }
    lines_.erase(0, start);
}

}  // namespace ddprun::agent
