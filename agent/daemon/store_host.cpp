#include "agent/daemon/store_host.hpp"

#include <fcntl.h>

#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include "base/check.hpp"
#include "rendezvous/store/relay/relay.hpp"
#include "worker_runtime/contract/worker_environment.hpp"

namespace ddprun::agent {

StoreHost::StoreHost(const Limits& limits, std::uint16_t port, rdzv::StoreServer::Say say)
    : limits_(limits), port_(port), say_(std::move(say)), server_(limits, say_) {}

Result<StoreAddress> StoreHost::open(const std::string& host) {
    if (std::holds_alternative<OpenForAll>(readiness_)) {
        return StoreAddress{host, port_};
    }
    Result<rdzv::StoreSocket> opened = rdzv::listen_for_store(host, port_);
    if (!opened) {
        return opened.error();
    }
    if (port_ != 0) {
        readiness_ = OpenForAll{.socket = std::move(opened->fd)};
    } else {
        readiness_ = OpenOnce{.socket = std::move(opened->fd)};
    }
    return StoreAddress{host, opened->port};
}

void StoreHost::serve(ServeStore order) {
    UniqueFd socket;
    if (const OpenForAll* fixed = std::get_if<OpenForAll>(&readiness_)) {
        // The port outlives the generation, its store does not.
        socket.reset(fcntl(fixed->socket.get(), F_DUPFD_CLOEXEC, 0));
    } else if (OpenOnce* once = std::get_if<OpenOnce>(&readiness_)) {
        socket = std::move(once->socket);
        readiness_ = NotOpen{};
    }
    DDP_CHECK(socket.is_open(), port_);
    server_.serve(std::move(socket), std::move(order.admitted),
                  static_cast<std::size_t>(order.clients));
}

void StoreHost::relay(StartWorkers& start) {
    namespace var = worker_variable;
    constexpr const char* kHost = "127.0.0.1";
    Result<rdzv::StoreSocket> socket = rdzv::listen_for_store(kHost, 0);
    if (!socket) {
        say_(fmt::format("warning: no store relay: {}; workers dial the store itself",
                         socket.error().what));
        return;
    }
    for (WorkerSpec& worker : start.workers) {
        for (auto& [key, value] : worker.environment) {
            if (key == var::kMasterAddr.key) {
                value = kHost;
            } else if (key == var::kMasterPort.key) {
                value = std::to_string(socket->port);
            }
        }
    }
    server_.serve_with(rdzv::make_relay(limits_, *start.relayed_store, say_),
                       std::move(socket->fd));
}

}  // namespace ddprun::agent
