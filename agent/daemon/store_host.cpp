#include "agent/daemon/store_host.hpp"

#include <fcntl.h>

#include <cstddef>
#include <utility>

#include "rendezvous/base/check.hpp"

namespace ddprun::agent {

StoreHost::StoreHost(const rdzv::Limits& limits, std::uint16_t port,
                     std::function<void(const std::string& line)> say)
    : port_(port), server_(limits, std::move(say)) {}

Result<rdzv::StoreAddress> StoreHost::open(const std::string& host) {
    if (fixed_.is_open()) {
        return rdzv::StoreAddress{host, port_};
    }
    Result<rdzv::StoreSocket> opened = rdzv::listen_for_store(host, port_);
    if (!opened) {
        return opened.error();
    }
    (port_ != 0 ? fixed_ : next_) = std::move(opened->fd);
    return rdzv::StoreAddress{host, opened->port};
}

void StoreHost::serve(ServeStore order) {
    if (port_ != 0) {
        // The port outlives the generation, its store does not.
        next_.reset(fcntl(fixed_.get(), F_DUPFD_CLOEXEC, 0));
    }
    DDP_CHECK(next_.is_open());
    server_.serve(std::move(next_), std::move(order.admitted),
                  static_cast<std::size_t>(order.clients));
}

}  // namespace ddprun::agent
