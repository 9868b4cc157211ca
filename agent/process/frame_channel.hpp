#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include "base/os/unique_fd.hpp"
#include "base/result.hpp"

namespace ddprun::agent {

/// One end of the socketpair between an agent and its keeper: frames (keeper_protocol.hpp) and the
/// descriptors that go with them, in order. One thread; kept alive by its own operations.
class FrameChannel : public std::enable_shared_from_this<FrameChannel> {
    struct Private {};

public:
    struct Events {
        std::function<void(std::string_view body)> on_frame;
        /// The other end is gone (`why` empty), or said something that no peer of ours says. Comes
        /// once, never after close().
        std::function<void(std::string why)> on_closed;
    };

    /// Two connected, close-on-exec sockets.
    [[nodiscard]] static Result<std::pair<UniqueFd, UniqueFd>> make_sockets();

    /// Failure is give_to_loop()'s.
    [[nodiscard]] static Result<std::shared_ptr<FrameChannel>> create(boost::asio::io_context& io,
                                                                      UniqueFd socket);

    /// Only create() can name the first argument.
    FrameChannel(Private, boost::asio::posix::stream_descriptor socket);

    void start(Events events);

    /// Queues a whole frame; it leaves at the end of this turn of the loop, together with others.
    void send(std::string frame, std::vector<UniqueFd> fds = {});

    [[nodiscard]] std::size_t queued_bytes() const { return queued_bytes_; }

    /// The next descriptor that came and was not taken; not open when there is none. The
    /// descriptors of a frame are here when on_frame is called.
    [[nodiscard]] UniqueFd take_fd();

    void close();

private:
    /// Bytes that go with one sendmsg() at least, and the descriptors that go with its first byte.
    struct Chunk {
        std::string bytes;
        std::size_t sent = 0;
        std::vector<UniqueFd> fds;
    };

    void wait_readable();
    void read_some();
    bool receive_once(bool& is_drained);
    void deliver_frames();
    void flush();
    bool send_once(Chunk& chunk, bool& would_block);
    void fail(std::string why);

    boost::asio::posix::stream_descriptor socket_;
    Events events_;
    std::string received_;
    std::deque<UniqueFd> received_fds_;
    std::deque<Chunk> chunks_;
    std::size_t queued_bytes_ = 0;
    bool is_flush_due_ = false;  ///< posted, or waiting for room in the socket
};

}  // namespace ddprun::agent
