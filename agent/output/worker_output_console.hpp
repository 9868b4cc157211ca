#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include "base/os/unique_fd.hpp"

namespace ddprun::agent {

/// One console stream (stdout, stderr, or both if they are the same place) of the output thread.
/// Takes bytes without ever blocking on a terminal, pipe or socket, and never changes the flags of
/// the description it was given, which the user's shell shares. Bytes that do not fit at once wait.
class ConsoleSink {
public:
    /// Duplicates `fd`; one that is not open makes a sink that is gone. `on_room` is called when
    /// the backlog has gone down to nothing. References outlive the sink.
    ConsoleSink(boost::asio::io_context& io, int fd, std::function<void()> on_room);
    ~ConsoleSink();
    ConsoleSink(const ConsoleSink&) = delete;
    ConsoleSink& operator=(const ConsoleSink&) = delete;

    /// Writes `bytes` after everything that waits.
    void write(std::string_view bytes);

    [[nodiscard]] std::size_t backlog() const { return waiting_.size() - written_; }

    /// The last byte was no line end.
    [[nodiscard]] bool is_in_line() const { return is_in_line_; }

private:
    enum class Kind { Plain, Socket, Blocking };

    /// Writes what the place takes now; returns the number of bytes, all of them if it is gone.
    std::size_t write_some(std::string_view bytes);
    void wait_for_room();
    void on_writable();
    void drop();

    Kind kind_ = Kind::Plain;
    UniqueFd fd_;
    boost::asio::posix::stream_descriptor room_;  ///< an epoll instance that watches fd_
    std::function<void()> on_room_;
    std::string waiting_;  ///< bytes [written_, size) are still to be written
    std::size_t written_ = 0;
    bool is_waiting_ = false;
    bool is_in_line_ = false;
};

}  // namespace ddprun::agent
