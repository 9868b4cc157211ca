// NetworkProxy as a program, steered through a fifo, so that tests and benchmarks can put it
// between programs in any namespace.
//
// usage: ddprun_network_proxy LISTEN-ADDRESS SERVER-ADDRESS SERVER-PORT FIFO [SEED]
//
// Says `listening on ADDRESS:PORT`, then `did ORDER` after each line that comes through the fifo,
// and `stalled N times` at each power of two and when the order is `stalls`.

#include <fcntl.h>
#include <sys/stat.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>

#include "tests/support/network_proxy.hpp"

namespace {

namespace asio = boost::asio;
using ddprun::test::NetworkProxy;

void say(const std::string& line) {
    fmt::print("{}\n", line);
    std::fflush(stdout);
}

void say_stalls(std::uint64_t count) {
    say(fmt::format("stalled {} times", count));
}

asio::awaitable<void> obey_orders(NetworkProxy& proxy, asio::posix::stream_descriptor& fifo) {
    std::string unread;
    for (;;) {
        const auto [failure, count] = co_await asio::async_read_until(
            fifo, asio::dynamic_buffer(unread), '\n', asio::as_tuple(asio::use_awaitable));
        if (failure) {
            co_return;
        }
        const std::string order = unread.substr(0, count - 1);
        unread.erase(0, count);
        if (order == "stalls") {
            say_stalls(proxy.stalls());
            continue;
        }
        say((proxy.obey(order) ? "did " : "does not know ") + order);
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 5) {
        fmt::print(stderr,
                   "usage: ddprun_network_proxy LISTEN-ADDRESS SERVER-ADDRESS SERVER-PORT FIFO\n");
        return 2;
    }
    asio::io_context io(1);
    const NetworkProxy::Tcp::endpoint listen(asio::ip::make_address(argv[1]), 0);
    const NetworkProxy::Tcp::endpoint server(asio::ip::make_address(argv[2]),
                                             static_cast<unsigned short>(std::atoi(argv[3])));
    const std::uint64_t seed = argc > 5 ? std::strtoull(argv[5], nullptr, 10) : 1;
    const auto proxy = std::make_shared<NetworkProxy>(io, listen, server, seed, say_stalls);
    // Open for writing, too: the fifo never ends.
    const int fd = ::open(argv[4], O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        std::perror(argv[4]);
        return 1;
    }
    asio::posix::stream_descriptor fifo(io, fd);
    proxy->start();
    asio::co_spawn(io, obey_orders(*proxy, fifo), asio::detached);
    say(fmt::format("listening on {}:{}", argv[1], proxy->listens_on().port()));
    io.run();
    return 0;
}
