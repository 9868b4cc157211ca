#include "rendezvous/store/net/store_outbox.hpp"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

namespace ddprun::rdzv {

void StoreOutbox::add(std::string_view bytes) {
    if (chunks_.empty() || chunks_.back().shared.owner != nullptr) {
        chunks_.emplace_back();
    }
    chunks_.back().own.append(bytes);
    copied_ += bytes.size();
    size_ += bytes.size();
}

void StoreOutbox::add(SharedText text) {
    size_ += text.bytes.size();
    chunks_.push_back({.own = {}, .shared = std::move(text)});
}

bool StoreOutbox::send(int fd) {
    while (!chunks_.empty()) {
        std::string_view rest = chunks_.front().bytes().substr(begin_);
        const std::size_t before = rest.size();
        if (!send_some(fd, rest)) {
            return false;
        }
        size_ -= before - rest.size();
        sent_ += before - rest.size();
        if (!rest.empty()) {
            begin_ += before - rest.size();
            return true;
        }
        copied_ -= chunks_.front().own.size();
        chunks_.pop_front();
        begin_ = 0;
    }
    return true;
}

bool send_some(int fd, std::string_view& bytes) {
    while (!bytes.empty()) {
        const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0) {
            return errno == EAGAIN || errno == EWOULDBLOCK;
        }
        bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
}

}  // namespace ddprun::rdzv
