// Our store, or relays to one, in a process of its own, as store.py compares it with PyTorch's:
// says its ports on standard output and serves until standard input ends.

#include <unistd.h>

#include <array>
#include <cstdio>
#include <list>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "base/os/open_files.hpp"
#include "rendezvous/store/net/store_server.hpp"
#include "rendezvous/store/relay/relay.hpp"

int main(int argc, char** argv) {
    using namespace ddprun;
    std::size_t servers_wanted = 1;
    std::uint16_t store_port = 0;
    std::size_t clients_expected = 0;
    CLI::App app{"A store, or relays, for tests/bench/store.py"};
    app.add_option("--relays", servers_wanted, "how many, with --store-port");
    app.add_option("--store-port", store_port, "of the store that the relays are of");
    app.add_option("--clients-expected", clients_expected, "as of the job that a store is for");
    CLI11_PARSE(app, argc, argv);
    raise_open_files(clients_expected);
    const auto say = [](const std::string& line) { fmt::print(stderr, "{}\n", line); };
    std::list<rdzv::StoreServer> servers;
    std::string ports;
    for (std::size_t i = 0; i < servers_wanted; ++i) {
        Result<rdzv::StoreSocket> socket = rdzv::listen_for_store("127.0.0.1", 0);
        if (!socket) {
            fmt::print(stderr, "store_bench_server: {}\n", socket.error().what);
            return 1;
        }
        ports += (i == 0 ? "" : ",") + std::to_string(socket->port);
        rdzv::StoreServer& server = servers.emplace_back(Limits{}, say);
        if (store_port == 0) {
            server.serve(std::move(socket->fd), {});
        } else {
            server.serve_with(rdzv::make_relay(Limits{}, {"127.0.0.1", store_port}, say),
                              std::move(socket->fd));
        }
    }
    fmt::print("{}\n", ports);
    std::fflush(stdout);
    std::array<char, 64> ignored;
    while (::read(STDIN_FILENO, ignored.data(), ignored.size()) > 0) {}
    return 0;
}
