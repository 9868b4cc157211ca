#include "rendezvous/store/net/socket.hpp"

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <cerrno>
#include <fstream>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "base/os/inherited_options.hpp"
#include "rendezvous/store/core/admission.hpp"

namespace ddprun::rdzv {

namespace {

Result<std::uint16_t> bound_port(int fd) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    if (::getsockname(fd, generic(address), &size) != 0) {
        return system_error(errno, "the store's socket does not tell its port");
    }
    return port_of(address);
}

/// The socket, and what failed if it cannot be used.
Result<StoreSocket> bind_for_store(const std::string& host, std::uint16_t port,
                                   const std::string& what) {
    sockaddr_storage address{};
    socklen_t size = 0;
    if (!parse_address(host, port, address, size)) {
        return Error{ErrorCode::InvalidArgument,
                     fmt::format("the store cannot listen on {}: that is no numeric address; give "
                                 "an address of this machine, 0.0.0.0 or ::",
                                 host)};
    }
    UniqueFd fd(::socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd.is_open()) {
        return system_error(errno, what);
    }
    // A port just left is free again; that "::" takes IPv4 too must not depend on a sysctl.
    const int on = 1;
    const int off = 0;
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (address.ss_family == AF_INET6) {
        ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    }
    if (::bind(fd.get(), generic(address), size) != 0) {
        return system_error(errno, what);
    }
    const Result<std::uint16_t> bound = bound_port(fd.get());
    if (!bound) {
        return bound.error();
    }
    return StoreSocket{std::move(fd), *bound};
}

}  // namespace

std::optional<sockaddr_storage> peer_of(int fd) {
    sockaddr_storage peer{};
    socklen_t size = sizeof peer;
    const bool is_there = ::getpeername(fd, generic(peer), &size) == 0;
    return is_there ? std::optional(peer) : std::nullopt;
}

Result<StoreSocket> listen_for_store(const std::string& host, std::uint16_t port) {
    const std::string what = fmt::format("the store cannot listen on {} port {}", host, port);
    Result<StoreSocket> bound = bind_for_store(host, port, what);
    if (!bound) {
        return bound;
    }
    // The kernel cuts the backlog down to its own limit.
    if (::listen(bound->fd.get(), std::numeric_limits<int>::max()) != 0) {
        return system_error(errno, what);
    }
    set_inherited_options(bound->fd.get());
    return bound;
}

Result<StoreSocket> keep_port_for_store(const std::string& host, std::uint16_t port) {
    // If several sockets share a port by SO_REUSEADDR, which PyTorch sets, one may listen.
    return bind_for_store(host, port,
                          fmt::format("no port of {} can be kept for rank 0's store, {} was asked "
                                      "for",
                                      host, port == 0 ? "any" : std::to_string(port)));
}

std::vector<std::string> store_capacity_warnings(std::size_t clients) {
    std::vector<std::string> lines;
    std::size_t backlog = 0;
    if (std::ifstream("/proc/sys/net/core/somaxconn") >> backlog && backlog < clients) {
        lines.push_back(
            fmt::format("store: warning: {} workers will connect and this machine lets {} wait; if "
                        "some are slow to start, raise it: sysctl -w net.core.somaxconn={}",
                        clients, backlog, clients));
    }
    constexpr std::size_t kOthers = 64;  // Other descriptors of this process.
    rlimit files{};
    if (::getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < clients + kOthers) {
        lines.push_back(
            fmt::format("store: warning: {} workers will connect and this process may open {} "
                        "files; raise the hard limit: ulimit -Hn {}",
                        clients, files.rlim_cur, clients + kOthers));
    }
    return lines;
}

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
