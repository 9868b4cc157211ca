#include "tests/support/network_proxy.hpp"

#include <array>
#include <bit>
#include <sstream>
#include <utility>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

namespace ddprun::test {

namespace asio = boost::asio;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

namespace {

constexpr std::size_t kHeldBytesMax = std::size_t{1} << 20;

}  // namespace

NetworkProxy::NetworkProxy(asio::io_context& io, const Tcp::endpoint& listen,
                           const Tcp::endpoint& server, std::uint64_t seed,
                           std::function<void(std::uint64_t)> on_stalls)
    : io_(io),
      acceptor_(io, listen),
      server_(server),
      rng_(seed),
      on_stalls_(std::move(on_stalls)) {}

void NetworkProxy::start() {
    asio::co_spawn(io_, accept(shared_from_this()), asio::detached);
}

bool NetworkProxy::obey(const std::string& order) {
    std::istringstream words(order);
    std::string verb;
    Milliseconds::rep number = 0;
    words >> verb >> number;
    if (verb == "delay") {
        delay_ = Milliseconds(number);
    } else if (verb == "random-stalls") {
        random_stall_max_ = Milliseconds(number);
        for (const LinkPtr& link : links_) {
            asio::co_spawn(io_, stall_at_random(shared_from_this(), link), asio::detached);
        }
    } else if (verb == "stall") {
        is_up_stalled_ = is_down_stalled_ = true;
    } else if (verb == "stall-up") {
        is_up_stalled_ = true;
    } else if (verb == "stall-down") {
        is_down_stalled_ = true;
    } else if (verb == "cut") {
        is_cut_ = true;
        for (const LinkPtr& link : std::set<LinkPtr>(links_)) {
            reset(*link);
        }
    } else if (verb == "heal") {
        is_up_stalled_ = is_down_stalled_ = is_cut_ = false;
        delay_ = random_stall_max_ = Milliseconds(0);
    } else {
        return false;
    }
    wake_all();
    return true;
}

bool NetworkProxy::is_stalled(const Link& link, bool is_up) const {
    return link.is_paused || (is_up ? is_up_stalled_ : is_down_stalled_);
}

void NetworkProxy::reset(Link& link) {
    link.has_ended = true;
    error_code ignored;
    for (Tcp::socket* socket : {&link.client, &link.server}) {
        socket->set_option(asio::socket_base::linger(true, 0), ignored);
        socket->close(ignored);
    }
    link.up.wake.cancel();
    link.down.wake.cancel();
    link.pause.cancel();
}

void NetworkProxy::wake_all() {
    for (const LinkPtr& link : links_) {
        link->up.wake.cancel();
        link->down.wake.cancel();
        link->pause.cancel();
    }
}

asio::awaitable<void> NetworkProxy::accept(Self self) {
    for (;;) {
        auto [failure, socket] =
            co_await self->acceptor_.async_accept(asio::as_tuple(asio::use_awaitable));
        if (failure) {
            continue;
        }
        const auto link = std::make_shared<Link>(self->io_, std::move(socket));
        if (self->is_cut_) {
            self->reset(*link);
            continue;
        }
        self->links_.insert(link);
        asio::co_spawn(self->io_, open(self, link), asio::detached);
    }
}

asio::awaitable<void> NetworkProxy::open(Self self, LinkPtr link) {
    const auto [failure] =
        co_await link->server.async_connect(self->server_, asio::as_tuple(asio::use_awaitable));
    if (failure || link->has_ended) {
        self->reset(*link);
        self->links_.erase(link);
        co_return;
    }
    error_code ignored;
    link->client.set_option(Tcp::no_delay(true), ignored);
    link->server.set_option(Tcp::no_delay(true), ignored);
    for (const bool is_up : {true, false}) {
        asio::co_spawn(self->io_, take_in(self, link, is_up), asio::detached);
        asio::co_spawn(self->io_, give_out(self, link, is_up), asio::detached);
    }
    if (self->random_stall_max_ > Milliseconds(0)) {
        asio::co_spawn(self->io_, stall_at_random(self, link), asio::detached);
    }
}

asio::awaitable<void> NetworkProxy::wait(Flow& flow, Clock::time_point until) {
    flow.wake.expires_at(until);
    const auto [cancelled] = co_await flow.wake.async_wait(asio::as_tuple(asio::use_awaitable));
    static_cast<void>(cancelled);  // the caller looks what has changed
}

asio::awaitable<void> NetworkProxy::take_in(Self self, LinkPtr link, bool is_up) {
    Flow& flow = is_up ? link->up : link->down;
    Tcp::socket& from = is_up ? link->client : link->server;
    std::array<char, 16384> buffer;
    while (!link->has_ended) {
        const auto [failure, count] = co_await from.async_read_some(
            asio::buffer(buffer), asio::as_tuple(asio::use_awaitable));
        if (link->has_ended) {
            break;
        }
        if (failure && failure != asio::error::eof) {
            self->reset(*link);  // as the other side would see it
            break;
        }
        flow.chunks.push_back({Clock::now() + self->delay_, std::string(buffer.data(), count)});
        flow.bytes += count;
        flow.wake.cancel();
        if (failure) {
            break;
        }
        // The writer counts on the same timer; both check again, whichever side was meant.
        while (flow.bytes > kHeldBytesMax && !link->has_ended) {
            asio::steady_timer pause(self->io_, Milliseconds(10));
            const auto [passed] = co_await pause.async_wait(asio::as_tuple(asio::use_awaitable));
            static_cast<void>(passed);
        }
    }
}

asio::awaitable<void> NetworkProxy::give_out(Self self, LinkPtr link, bool is_up) {
    Flow& flow = is_up ? link->up : link->down;
    Tcp::socket& to = is_up ? link->server : link->client;
    while (!link->has_ended) {
        if (flow.chunks.empty() || self->is_stalled(*link, is_up)) {
            co_await wait(flow, Clock::time_point::max());
            continue;
        }
        if (flow.chunks.front().due > Clock::now()) {
            co_await wait(flow, flow.chunks.front().due);
            continue;
        }
        const std::string bytes = std::move(flow.chunks.front().bytes);
        flow.chunks.pop_front();
        flow.bytes -= bytes.size();
        if (bytes.empty()) {
            error_code ignored;
            to.shutdown(Tcp::socket::shutdown_send, ignored);
            break;
        }
        const auto [failure, count] = co_await asio::async_write(
            to, asio::buffer(bytes), asio::as_tuple(asio::use_awaitable));
        if (failure && !link->has_ended) {
            self->reset(*link);
        }
    }
    if (++link->ended_flows == 2) {
        self->reset(*link);
        self->links_.erase(link);
    }
}

asio::awaitable<void> NetworkProxy::stall_at_random(Self self, LinkPtr link) {
    if (std::exchange(link->is_stalling, true)) {
        co_return;
    }
    while (!link->has_ended && self->random_stall_max_ > Milliseconds(0)) {
        link->is_paused = !link->is_paused;
        if (link->is_paused) {
            ++self->stalls_;
            // Ever more rarely: the pipe may have no reader, and a full one would stop every link.
            if (std::has_single_bit(self->stalls_)) {
                self->on_stalls_(self->stalls_);
            }
        }
        link->up.wake.cancel();
        link->down.wake.cancel();
        const auto most = static_cast<std::uint64_t>(self->random_stall_max_.count());
        link->pause.expires_after(
            Milliseconds(static_cast<Milliseconds::rep>(1 + self->rng_.below(most))));
        const auto [cancelled] =
            co_await link->pause.async_wait(asio::as_tuple(asio::use_awaitable));
        static_cast<void>(cancelled);
    }
    link->is_stalling = false;
    link->is_paused = false;
    link->up.wake.cancel();
    link->down.wake.cancel();
}

}  // namespace ddprun::test
