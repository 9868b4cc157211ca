#include "rendezvous/store/store_session.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

namespace ddprun::rdzv {

StoreSession::StoreSession(StoreService& service, StoreClient client, UniqueFd socket,
                           const Limits& limits)
    : service_(service),
      limits_(limits),
      socket_(std::move(socket)),
      client_(client),
      splitter_(limits) {
    update_watch();
}

void StoreSession::close() {
    // Closing alone is not enough while a child that was just forked holds a duplicate.
    service_.watch(client_, socket_.get(), watched_, 0);
    socket_.reset();
}

std::string StoreSession::peer_text() const {
    sockaddr_storage peer{};
    socklen_t size = sizeof peer;
    ::getpeername(socket_.get(), static_cast<sockaddr*>(static_cast<void*>(&peer)), &size);
    return address_text(peer);
}

void StoreSession::on_event(std::uint32_t events) {
    if (!unsent_.empty()) {
        if (!send_unsent()) {
            service_.drop(client_);
            service_.settle();
            return;
        }
        // Requests may have been left lying when the client stopped reading.
        if (!is_paused() && filled_ > 0) {
            const std::string_view bytes(buffer_.get(), filled_);
            const std::size_t handled = handle_requests(bytes);
            keep(bytes.substr(handled));
        }
    }
    if (socket_.is_open() && !is_paused() && (events & ~std::uint32_t{EPOLLOUT}) != 0) {
        read();
    }
    if (socket_.is_open()) {
        update_watch();
    }
}

void StoreSession::read() {
    char* const begin = filled_ > 0 ? buffer_.get() : service_.scratch().data();
    const std::size_t capacity = filled_ > 0 ? capacity_ : service_.scratch().size();
    const ssize_t count = ::recv(socket_.get(), begin + filled_, capacity - filled_, MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
        return;
    }
    if (count <= 0) {
        service_.drop(client_);
        service_.settle();
        return;
    }
    const std::string_view bytes(begin, filled_ + static_cast<std::size_t>(count));
    const std::size_t handled = handle_requests(bytes);
    keep(bytes.substr(handled));
}

/// Handles what is complete, unless the client leaves its replies lying, and returns how many bytes
/// that was. The session may be closed afterwards.
std::size_t StoreSession::handle_requests(std::string_view bytes) {
    std::size_t handled = 0;
    while (socket_.is_open() && !is_paused()) {
        const Result<std::size_t> size = splitter_.split(bytes.substr(handled));
        if (!size) {
            service_.cut_off(client_, size.error());
            break;
        }
        if (*size == 0) {
            break;
        }
        const Result<void> done = service_.handle(client_, bytes.substr(handled, *size));
        handled += *size;
        if (!done) {
            service_.cut_off(client_, done.error());
            break;
        }
        if (service_.reply_bytes() > limits_.send_queue_bytes_max) {
            service_.settle();
        }
    }
    service_.settle();
    return handled;
}

/// Keeps `rest`, which is in the buffer or in the service's scratch. The buffer grows with what has
/// arrived, not with what a length announces, and is given back when nothing is left.
void StoreSession::keep(std::string_view rest) {
    constexpr std::size_t kBufferBytesMin = 512;
    if (rest.empty()) {
        buffer_.reset();
        capacity_ = 0;
    } else if (rest.size() < capacity_) {
        std::memmove(buffer_.get(), rest.data(), rest.size());
    } else {
        const std::size_t capacity = 2 * std::max(rest.size(), kBufferBytesMin);
        std::unique_ptr<char[]> buffer = std::make_unique_for_overwrite<char[]>(capacity);
        std::memcpy(buffer.get(), rest.data(), rest.size());
        buffer_ = std::move(buffer);
        capacity_ = capacity;
    }
    filled_ = rest.size();
}

bool StoreSession::send(std::string_view bytes) {
    if (!unsent_.empty()) {
        if (unsent_.size() - sent_ + bytes.size() > limits_.store_reply_bytes_max) {
            service_.cut_off(client_, Error{ErrorCode::LimitExceeded,
                                            fmt::format("more than {} bytes of replies unread",
                                                        limits_.store_reply_bytes_max)});
            return true;
        }
        unsent_.append(bytes);
        return true;
    }
    // Nearly always the kernel takes everything, and the bytes are never copied here.
    while (!bytes.empty()) {
        const ssize_t sent =
            ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) {
            continue;
        }
        if (sent < 0) {
            if (errno != EAGAIN && errno != EWOULDBLOCK) {
                return false;
            }
            unsent_.assign(bytes);
            update_watch();
            return true;
        }
        bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
}

/// False when the client is gone.
bool StoreSession::send_unsent() {
    while (sent_ < unsent_.size()) {
        const ssize_t sent = ::send(socket_.get(), unsent_.data() + sent_, unsent_.size() - sent_,
                                    MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0) {
            return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
        }
        sent_ += static_cast<std::size_t>(sent);
    }
    std::string().swap(unsent_);  // Gives the memory back.
    sent_ = 0;
    return true;
}

void StoreSession::update_watch() {
    const std::uint32_t wanted = (is_paused() ? 0U : std::uint32_t{EPOLLIN}) |
                                 (unsent_.empty() ? 0U : std::uint32_t{EPOLLOUT});
    if (wanted != watched_) {
        service_.watch(client_, socket_.get(), watched_, wanted);
        watched_ = wanted;
    }
}

}  // namespace ddprun::rdzv
