#include "agent/output/worker_output_console.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include <boost/system/error_code.hpp>
#include <fmt/format.h>

#include "base/os/give_to_loop.hpp"

namespace ddprun::agent {

namespace {

/// A pipe that polls as writable takes this much without blocking.
constexpr std::size_t kBlockingPieceBytes = 4096;
/// Written bytes are cut off the backlog once they are this many.
constexpr std::size_t kCompactBytes = std::size_t{1} << 20;

bool is_gone(int error) {
    return error == EPIPE || error == EIO || error == EBADF || error == ENXIO ||
           error == ECONNRESET || error == ENOTCONN;
}

}  // namespace

ConsoleSink::ConsoleSink(boost::asio::io_context& io, int fd, std::function<void()> on_room)
    : fd_(::fcntl(fd, F_DUPFD_CLOEXEC, 3)), room_(io), on_room_(std::move(on_room)) {
    struct stat status {};
    if (!fd_.is_open() || ::fstat(fd_.get(), &status) != 0) {
        return;
    }
    if (S_ISSOCK(status.st_mode)) {
        kind_ = Kind::Socket;
    } else if (S_ISFIFO(status.st_mode) || ::isatty(fd_.get()) == 1) {
        // O_NONBLOCK belongs to the open file description, which the shell shares: so open it anew.
        // If that is not allowed, the sink makes small writes once `fd_` polls as writable.
        const std::string path = fmt::format("/proc/self/fd/{}", fd_.get());
        UniqueFd own(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
        if (own.is_open()) {
            fd_ = std::move(own);
        } else {
            kind_ = Kind::Blocking;
        }
    }
    if (kind_ == Kind::Plain && S_ISREG(status.st_mode)) {
        return;  // never waits, and cannot be watched
    }
    // Asio would make the description non-blocking, so it is given an epoll instance instead.
    UniqueFd watch(::epoll_create1(EPOLL_CLOEXEC));
    epoll_event event{};
    event.events = EPOLLOUT | EPOLLONESHOT;
    if (watch.is_open() && ::epoll_ctl(watch.get(), EPOLL_CTL_ADD, fd_.get(), &event) == 0) {
        (void)give_to_loop(room_, std::move(watch));
    }
}

ConsoleSink::~ConsoleSink() = default;

void ConsoleSink::write(std::string_view bytes) {
    if (bytes.empty() || !fd_.is_open()) {
        return;
    }
    is_in_line_ = bytes.back() != '\n';
    if (backlog() == 0) {
        bytes.remove_prefix(write_some(bytes));
    }
    if (bytes.empty() || !fd_.is_open()) {
        return;
    }
    if (written_ >= kCompactBytes) {
        waiting_.erase(0, std::exchange(written_, 0));
    }
    waiting_.append(bytes);
    wait_for_room();
}

std::size_t ConsoleSink::write_some(std::string_view bytes) {
    std::size_t done = 0;
    while (done < bytes.size()) {
        const std::string_view rest = bytes.substr(done);
        ssize_t count = 0;
        if (kind_ == Kind::Socket) {
            count = ::send(fd_.get(), rest.data(), rest.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        } else if (kind_ == Kind::Blocking) {
            pollfd room{fd_.get(), POLLOUT, 0};
            if (::poll(&room, 1, 0) == 0) {
                return done;
            }
            count = ::write(fd_.get(), rest.data(), std::min(rest.size(), kBlockingPieceBytes));
        } else {
            count = ::write(fd_.get(), rest.data(), rest.size());
        }
        if (count >= 0) {
            done += static_cast<std::size_t>(count);
        } else if (errno == EAGAIN) {
            return done;
        } else if (errno != EINTR) {
            if (is_gone(errno)) {
                drop();
            }
            // A full disk behind `> file` costs these bytes of the console, never the job.
            return bytes.size();
        }
    }
    return done;
}

void ConsoleSink::wait_for_room() {
    if (is_waiting_) {
        return;
    }
    if (!room_.is_open()) {
        drop();
        return;
    }
    is_waiting_ = true;
    epoll_event event{};
    event.events = EPOLLOUT | EPOLLONESHOT;
    ::epoll_ctl(room_.native_handle(), EPOLL_CTL_MOD, fd_.get(), &event);
    room_.async_wait(boost::asio::posix::descriptor_base::wait_read,
                     [this](boost::system::error_code error) {
                         if (!error) {
                             on_writable();
                         }
                     });
}

void ConsoleSink::on_writable() {
    is_waiting_ = false;
    written_ += write_some(std::string_view(waiting_).substr(written_));
    if (fd_.is_open() && backlog() > 0) {
        wait_for_room();
        return;
    }
    // Give the memory back: a backlog is rare.
    std::string().swap(waiting_);
    written_ = 0;
    on_room_();
}

void ConsoleSink::drop() {
    boost::system::error_code ignored;
    room_.close(ignored);
    fd_.reset();
    std::string().swap(waiting_);
    written_ = 0;
}

}  // namespace ddprun::agent
