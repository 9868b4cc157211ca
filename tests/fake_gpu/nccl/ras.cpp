#include "tests/fake_gpu/nccl/ras.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tests/fake_gpu/machine/settings.hpp"
#include "tests/fake_gpu/nccl/communicator.hpp"
#include "tests/fake_gpu/nccl/operation.hpp"

namespace fake_gpu {

namespace {

/// What RAS counts, by the names that it has for them.
constexpr std::array<std::pair<OperationKind, const char*>, 5> kCounted = {
    {{OperationKind::Broadcast, "Broadcast"},
     {OperationKind::Reduce, "Reduce"},
     {OperationKind::AllGather, "AllGather"},
     {OperationKind::ReduceScatter, "ReduceScatter"},
     {OperationKind::AllReduce, "AllReduce"}}};

struct Shown {
    std::mutex mutex;
    std::vector<std::weak_ptr<ncclComm>> communicators;
    bool has_tried_to_listen = false;
};

Shown& shown() {
    // Never destroyed: the listening thread outlives main().
    static Shown& all = *std::make_unique<Shown>().release();
    return all;
}

/// `"name":value`, and a comma before it where another one stands before.
void add(std::string& object, std::string_view name, const std::string& value) {
    object += object.back() == '{' ? "\"" : ",\"";
    object.append(name).append("\":").append(value);
}

std::string rank_text(const ncclComm& communicator, int rank) {
    std::string counts = "{";
    for (const auto& [kind, name] : kCounted) {
        add(counts, name, std::to_string(communicator.launched(rank, kind)));
    }
    std::string text = "{";
    add(text, "rank", std::to_string(rank));
    add(text, "host", "\"127.0.0.1\"");
    add(text, "pid", std::to_string(communicator.process_of(rank)));
    add(text, "collective_counts", counts + "}");
    return text + "}";
}

std::string communicator_text(const ncclComm& communicator) {
    std::string ranks = "[";
    for (int rank = 0; rank < communicator.size(); ++rank) {
        ranks += (rank == 0 ? "" : ",") + rank_text(communicator, rank);
    }
    std::string text = "{";
    add(text, "hash", "\"" + communicator.id() + "\"");
    add(text, "size", std::to_string(communicator.size()));
    add(text, "ranks", ranks + "]");
    return text + "}";
}

std::string status_text() {
    std::string all = "[";
    const std::lock_guard lock(shown().mutex);
    for (const std::weak_ptr<ncclComm>& one : shown().communicators) {
        const std::shared_ptr<ncclComm> communicator = one.lock();
        if (communicator && communicator->is_connected()) {
            all += (all.size() == 1 ? "" : ",") + communicator_text(*communicator);
        }
    }
    std::string text = "{";
    add(text, "communicators", all + "]");
    return text + "}\n";
}

void answer(int client) {
    std::string asked;
    std::array<char, 512> buffer;
    while (!asked.ends_with("STATUS\n")) {
        const ssize_t got = recv(client, buffer.data(), buffer.size(), 0);
        if (got <= 0) {
            return;
        }
        asked.append(buffer.data(), static_cast<std::size_t>(got));
    }
    if (asked.find("SET FORMAT json\n") == std::string::npos) {
        give_up("NCCL's RAS was asked for words: it has only JSON");
    }
    const std::string text = "SERVER PROTOCOL 2\nOK\nOK\n" + status_text();
    for (std::size_t sent = 0; sent < text.size();) {
        const ssize_t count = send(client, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
        if (count < 0) {
            return;
        }
        sent += static_cast<std::size_t>(count);
    }
}

/// At an IPv4 address. -1: another process has it.
int listen_at(const std::string& text) {
    const std::size_t colon = text.rfind(':');
    sockaddr_in address{};
    address.sin_family = AF_INET;
    if (colon == std::string::npos ||
        inet_pton(AF_INET, text.substr(0, colon).c_str(), &address.sin_addr) != 1) {
        give_up("NCCL_RAS_ADDR must be an IPv4 address and a port, not " + text);
    }
    address.sin_port = htons(static_cast<std::uint16_t>(std::atoi(text.c_str() + colon + 1)));
    const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int yes = 1;
    (void)setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(server, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
        listen(server, SOMAXCONN) != 0) {
        (void)close(server);
        return -1;
    }
    return server;
}

void serve(int server) {
    for (;;) {
        const int client = accept4(server, nullptr, nullptr, SOCK_CLOEXEC);
        if (client >= 0) {
            answer(client);
            (void)close(client);
        }
    }
}

}  // namespace

void show_to_ras(const std::shared_ptr<ncclComm>& communicator) {
    const std::lock_guard lock(shown().mutex);
    shown().communicators.push_back(communicator);
    const char* const address = std::getenv("NCCL_RAS_ADDR");
    if (address == nullptr || std::exchange(shown().has_tried_to_listen, true)) {
        return;
    }
    if (const int server = listen_at(address); server >= 0) {
        std::thread(serve, server).detach();
    }
}

}  // namespace fake_gpu
