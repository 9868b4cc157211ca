// Our store in a process of its own, as store.py compares it with PyTorch's: says its port on
// standard output and serves until standard input ends.

#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cstdio>

#include <fmt/format.h>

#include "rendezvous/store/store_server.hpp"

int main() {
    using namespace ddprun;
    rlimit descriptors{};
    ::getrlimit(RLIMIT_NOFILE, &descriptors);
    descriptors.rlim_cur = descriptors.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &descriptors);
    Result<rdzv::StoreSocket> socket = rdzv::listen_for_store("127.0.0.1", 0);
    if (!socket) {
        fmt::print(stderr, "store_bench_server: {}\n", socket.error().what);
        return 1;
    }
    rdzv::StoreServer server(rdzv::Limits{},
                             [](std::string line) { fmt::print(stderr, "{}\n", line); });
    fmt::print("{}\n", socket->port);
    std::fflush(stdout);
    server.serve(std::move(socket->fd), {});
    std::array<char, 64> ignored;
    while (::read(STDIN_FILENO, ignored.data(), ignored.size()) > 0) {}
    return 0;
}
