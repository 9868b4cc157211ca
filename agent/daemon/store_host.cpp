#include "agent/daemon/store_host.hpp"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>

#include <fmt/format.h>

#include "base/check.hpp"
#include "rendezvous/store/relay/relay.hpp"
#include "worker_runtime/contract/worker_environment.hpp"

namespace ddprun::agent {

namespace {

char ascii_lower(char letter) {
    return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
}

}  // namespace

StoreHost::StoreHost(const Limits& limits, Server server, std::uint16_t port,
                     rdzv::StoreServer::Say say)
    : limits_(limits), kind_(server), port_(port), say_(std::move(say)), server_(limits, say_) {}

Result<StoreAddress> StoreHost::open(const std::string& host) {
    if (const Result<void> prepared = server_.prepare(); !prepared) {
        return prepared.error();
    }
    if (!std::holds_alternative<OpenForAll>(readiness_)) {
        Result<rdzv::StoreSocket> opened = kind_ == Server::Rank0
                                               ? rdzv::keep_port_for_store(host, port_)
                                               : rdzv::listen_for_store(host, port_);
        if (!opened) {
            Error error = opened.error();
            if (error.code == ErrorCode::AddressInUse) {
                error.what +=
                    "; leave --master-port out, and the store takes a free port, or give another";
            }
            return error;
        }
        if (port_ == 0) {
            readiness_ = OpenOnce{.socket = std::move(opened->fd)};
            return StoreAddress{host, opened->port};
        }
        readiness_ = OpenForAll{.socket = std::move(opened->fd)};
    }
    OpenForAll& fixed = std::get<OpenForAll>(readiness_);
    fixed.next.reset(fcntl(fixed.socket.get(), F_DUPFD_CLOEXEC, 0));
    if (!fixed.next.is_open()) {
        return system_error(
            errno, fmt::format("no descriptor for a store on {}:{} (ulimit -n)", host, port_));
    }
    return StoreAddress{host, port_};
}

void StoreHost::serve(ServeStore order) {
    UniqueFd socket;
    if (OpenForAll* fixed = std::get_if<OpenForAll>(&readiness_)) {
        socket = std::move(fixed->next);
    } else if (OpenOnce* once = std::get_if<OpenOnce>(&readiness_)) {
        socket = std::move(once->socket);
        readiness_ = NotOpen{};
    }
    DDP_CHECK(socket.is_open(), port_);
    if (kind_ == Server::Rank0) {
        kept_ = std::move(socket);
        return;
    }
    server_.serve(std::move(socket), std::move(order.admitted),
                  static_cast<std::size_t>(order.clients));
}

void StoreHost::close() {
    server_.close();
    kept_.reset();
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

std::vector<rdzv::StoreOperations> StoreHost::operations() const {
    std::vector<rdzv::StoreOperations> list;
    const rdzv::StoreCounts counts = server_.counts();
    for (std::size_t i = 0; i < counts.operations.size(); ++i) {
        const rdzv::StoreOperationCount& told = counts.operations.at(i);
        if (told.count > 0) {
            std::string name(name_of(rdzv::StoreOpcode{static_cast<std::uint8_t>(i)}));
            std::transform(name.begin(), name.end(), name.begin(), ascii_lower);
            list.push_back({.operation = std::move(name),
                            .count = told.count,
                            .timed = told.timed,
                            .time_ns = told.time_ns});
        }
    }
    return list;
}

std::uint64_t StoreHost::requests() const {
    using rdzv::StoreOpcode;
    constexpr std::array kLooks = {StoreOpcode::Check, StoreOpcode::GetNumKeys, StoreOpcode::Ping,
                                   StoreOpcode::QueueLen, StoreOpcode::ListKeys};
    std::uint64_t requests = 0;
    const rdzv::StoreCounts counts = server_.counts();
    for (std::size_t i = 0; i < counts.operations.size(); ++i) {
        const StoreOpcode opcode{static_cast<std::uint8_t>(i)};
        if (std::find(kLooks.begin(), kLooks.end(), opcode) == kLooks.end()) {
            requests += counts.operations.at(i).count;
        }
    }
    return requests;
}

Estimates StoreHost::estimates() const {
    const auto known = [](Instant at) {
        return at == Instant::min() ? std::nullopt : std::optional(at);
    };
    const rdzv::StoreCounts counts = server_.counts();
    return {.main = known(counts.all_here), .group_ready = known(counts.group_ready)};
}

}  // namespace ddprun::agent
