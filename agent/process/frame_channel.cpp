#include "agent/process/frame_channel.hpp"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "agent/process/keeper_protocol.hpp"
#include "base/os/give_to_loop.hpp"

namespace ddprun::agent {

namespace {

constexpr std::size_t kReceiveBytes = std::size_t{64} << 10;
/// The kernel's limit of descriptors in one message.
constexpr std::size_t kFdsMax = 253;
/// Frames are put together up to about this size.
constexpr std::size_t kChunkBytes = std::size_t{128} << 10;

constexpr std::size_t kControlBytes = CMSG_SPACE(sizeof(int) * kFdsMax);

}  // namespace

Result<std::pair<UniqueFd, UniqueFd>> FrameChannel::make_sockets() {
    std::array<int, 2> fds{};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds.data()) != 0) {
        return system_error(errno, "cannot make the sockets between agent and keeper");
    }
    return std::pair(UniqueFd(fds[0]), UniqueFd(fds[1]));
}

Result<std::shared_ptr<FrameChannel>> FrameChannel::create(boost::asio::io_context& io,
                                                           UniqueFd socket) {
    boost::asio::posix::stream_descriptor watched(io);
    if (const Result<void> given = give_to_loop(watched, std::move(socket)); !given) {
        return given.error();
    }
    return std::make_shared<FrameChannel>(Private{}, std::move(watched));
}

FrameChannel::FrameChannel(Private /*unused*/, boost::asio::posix::stream_descriptor socket)
    : socket_(std::move(socket)) {}

void FrameChannel::start(Events events) {
    events_ = std::move(events);
    wait_readable();
}

void FrameChannel::send(std::string frame, std::vector<UniqueFd> fds) {
    if (!socket_.is_open()) {
        return;
    }
    queued_bytes_ += frame.size();
    const bool joins_last = !chunks_.empty() && chunks_.back().sent == 0 &&
                            chunks_.back().bytes.size() < kChunkBytes &&
                            chunks_.back().fds.size() + fds.size() <= kFdsMax;
    if (!joins_last) {
        chunks_.emplace_back();
    }
    Chunk& chunk = chunks_.back();
    chunk.bytes += frame;
    for (UniqueFd& fd : fds) {
        chunk.fds.push_back(std::move(fd));
    }
    if (!is_flush_due_) {
        is_flush_due_ = true;
        boost::asio::post(socket_.get_executor(), [self = shared_from_this()] { self->flush(); });
    }
}

UniqueFd FrameChannel::take_fd() {
    if (received_fds_.empty()) {
        return {};
    }
    UniqueFd fd = std::move(received_fds_.front());
    received_fds_.pop_front();
    return fd;
}

void FrameChannel::close() {
    boost::system::error_code ignored;
    socket_.close(ignored);
    chunks_.clear();
    queued_bytes_ = 0;
    received_fds_.clear();
}

void FrameChannel::wait_readable() {
    socket_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                       [self = shared_from_this()](const boost::system::error_code& error) {
                           if (!error && self->socket_.is_open()) {
                               self->read_some();
                           }
                       });
}

void FrameChannel::read_some() {
    bool is_drained = false;
    while (socket_.is_open() && !is_drained) {
        if (!receive_once(is_drained)) {
            return;
        }
        deliver_frames();
    }
    if (socket_.is_open()) {
        wait_readable();
    }
}

/// False when the connection has ended; fail() was called then.
bool FrameChannel::receive_once(bool& is_drained) {
    const std::size_t had = received_.size();
    received_.resize(had + kReceiveBytes);
    alignas(cmsghdr) std::array<char, kControlBytes> control;
    iovec part{received_.data() + had, kReceiveBytes};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t got = recvmsg(socket_.native_handle(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    const int error = got < 0 ? errno : 0;
    received_.resize(had + (got > 0 ? static_cast<std::size_t>(got) : 0));
    if (error == EINTR) {
        return true;
    }
    if (error == EAGAIN) {
        is_drained = true;
        return true;
    }
    if (got <= 0) {
        fail(error == 0 || error == ECONNRESET
                 ? ""
                 : system_error(error, "cannot read from agent or keeper").what);
        return false;
    }
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
         header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t i = 0; i < count; ++i) {
            int fd = -1;
            std::memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
            received_fds_.emplace_back(fd);
        }
    }
    if ((message.msg_flags & MSG_CTRUNC) != 0) {
        fail("descriptors from the agent were lost: the limit on open files is too low");
        return false;
    }
    return true;
}

void FrameChannel::deliver_frames() {
    std::size_t at = 0;
    while (socket_.is_open() && received_.size() - at >= sizeof(std::uint32_t)) {
        std::uint32_t length = 0;
        std::memcpy(&length, received_.data() + at, sizeof length);
        if (length > kKeeperFrameBytesMax) {
            fail(fmt::format("a message of {} bytes between agent and keeper; {} are allowed",
                             length, kKeeperFrameBytesMax));
            return;
        }
        if (received_.size() - at - sizeof length < length) {
            break;
        }
        events_.on_frame(std::string_view(received_).substr(at + sizeof length, length));
        at += sizeof length + length;
    }
    received_.erase(0, at);
}

void FrameChannel::flush() {
    is_flush_due_ = false;
    while (socket_.is_open() && !chunks_.empty()) {
        bool would_block = false;
        if (!send_once(chunks_.front(), would_block)) {
            return;
        }
        if (would_block) {
            is_flush_due_ = true;
            socket_.async_wait(
                boost::asio::posix::stream_descriptor::wait_write,
                [self = shared_from_this()](const boost::system::error_code&) { self->flush(); });
            return;
        }
        if (chunks_.front().sent == chunks_.front().bytes.size()) {
            chunks_.pop_front();
        }
    }
}

/// False when the connection has ended. The reading side reports that, after what was still to be
/// read.
bool FrameChannel::send_once(Chunk& chunk, bool& would_block) {
    alignas(cmsghdr) std::array<char, kControlBytes> control{};
    iovec part{chunk.bytes.data() + chunk.sent, chunk.bytes.size() - chunk.sent};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (!chunk.fds.empty()) {
        message.msg_control = control.data();
        message.msg_controllen = CMSG_SPACE(sizeof(int) * chunk.fds.size());
        cmsghdr* header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int) * chunk.fds.size());
        for (std::size_t i = 0; i < chunk.fds.size(); ++i) {
            const int fd = chunk.fds[i].get();
            std::memcpy(CMSG_DATA(header) + i * sizeof fd, &fd, sizeof fd);
        }
    }
    const ssize_t sent = sendmsg(socket_.native_handle(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) {
        chunk.fds.clear();
        chunk.sent += static_cast<std::size_t>(sent);
        queued_bytes_ -= static_cast<std::size_t>(sent);
        return true;
    }
    if (errno == EAGAIN || errno == EINTR) {
        would_block = errno == EAGAIN;
        return true;
    }
    if (errno == EPIPE || errno == ECONNRESET) {
        chunks_.clear();
        queued_bytes_ = 0;
        return false;
    }
    fail(system_error(errno, "cannot write to agent or keeper").what);
    return false;
}

void FrameChannel::fail(std::string why) {
    close();
    if (const std::function<void(std::string)> on_closed = std::exchange(events_.on_closed, {})) {
        on_closed(std::move(why));
    }
}

}  // namespace ddprun::agent
