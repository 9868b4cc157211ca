#include "launcher/ctl/peer_check.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/limits.hpp"
#include "base/os/network_interfaces.hpp"
#include "base/os/numeric_address.hpp"
#include "base/whole_number.hpp"
#include "rendezvous/transport/listener.hpp"

namespace ddprun::launcher {

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

/// "ddpctl-peers 1 NUMBER PORT\n": the place in the list of who speaks, and its chosen port.
constexpr std::string_view kHelloWord = "ddpctl-peers 1 ";

struct Hello {
    std::size_t index = 0;
    std::uint16_t port = 0;
};

std::optional<Hello> read_hello(std::string_view line) {
    if (!line.starts_with(kHelloWord) || !line.ends_with('\n')) {
        return std::nullopt;
    }
    line.remove_prefix(kHelloWord.size());
    line.remove_suffix(1);
    const std::size_t blank = line.find(' ');
    if (blank == std::string_view::npos) {
        return std::nullopt;
    }
    const auto index = whole_number<std::size_t>(line.substr(0, blank));
    const auto port = whole_number<std::uint16_t>(line.substr(blank + 1));
    return index && port && *port != 0 ? std::optional(Hello{*index, *port}) : std::nullopt;
}

WayTo way_of(const boost::system::error_code& error) {
    if (error == asio::error::connection_refused) {
        return {.reach = Reach::Refused};
    }
    return error == asio::error::timed_out ? WayTo{.reach = Reach::Silent}
                                           : WayTo{.reach = Reach::Failed, .why = error.message()};
}

/// Chooses the address to listen on for all of `addresses`, the first of which is this node's.
/// Nodes that are all on this machine cannot share a port of all its addresses.
std::string address_to_listen_on(const std::vector<std::string>& addresses) {
    const bool are_here =
        std::all_of(addresses.begin(), addresses.end(), [](const std::string& address) {
            return !address.empty() && asio::ip::make_address(address).is_loopback();
        });
    if (are_here) {
        return addresses.front();
    }
    const bool has_ipv6 = std::any_of(
        addresses.begin(), addresses.end(),
        [](const std::string& address) { return address.find(':') != std::string::npos; });
    return has_ipv6 ? "::" : "0.0.0.0";  // the former takes IPv4 too
}

/// One node's part. Everything runs on the thread that calls run().
class PeerCheck {
public:
    PeerCheck(const PeerCheckOptions& options, PeersFacts facts, std::vector<std::size_t> indices,
              std::size_t self)
        : options_(options),
          facts_(std::move(facts)),
          indices_(std::move(indices)),
          self_(self),
          deadline_(io_),
          common_(io_),
          chosen_(io_) {
        for (std::size_t i = 0; i < facts_.peers.size(); ++i) {
            known_.push_back(
                std::make_unique<asio::steady_timer>(io_, asio::steady_timer::time_point::max()));
        }
    }

    /// Fails if the kernel gives no port at all.
    Result<PeersFacts> run(const std::string& own_address) {
        Result<rdzv::Listener> common = rdzv::listen_on(own_address, options_.port);
        if (!common) {
            facts_.port_taken = common.error().what;
            return std::move(facts_);
        }
        Result<rdzv::Listener> chosen = rdzv::listen_on(own_address, 0);
        if (!chosen) {
            return chosen.error();
        }
        const tcp protocol = own_address.find(':') != std::string::npos ? tcp::v6() : tcp::v4();
        common_.assign(protocol, common->fd.release());
        chosen_.assign(protocol, chosen->fd.release());
        hello_ = fmt::format("{}{} {}\n", kHelloWord, self_, chosen->port);
        asio::co_spawn(io_, accept_all(common_, &PeerFacts::came_to_common), asio::detached);
        asio::co_spawn(io_, accept_all(chosen_, &PeerFacts::came_to_chosen), asio::detached);
        for (std::size_t i = 0; i < facts_.peers.size(); ++i) {
            if (!facts_.peers[i].address.empty()) {
                asio::co_spawn(io_, reach_common(i), asio::detached);
                asio::co_spawn(io_, reach_chosen(i), asio::detached);
            }
        }
        deadline_.expires_after(options_.wait);
        deadline_.async_wait([this](const boost::system::error_code& error) {
            if (!error) {
                io_.stop();
            }
        });
        end_if_done();
        io_.run();
        return std::move(facts_);
    }

private:
    asio::awaitable<void> accept_all(tcp::acceptor& acceptor, bool PeerFacts::*came) {
        for (;;) {
            auto [error, socket] =
                co_await acceptor.async_accept(asio::as_tuple(asio::use_awaitable));
            if (error) {
                asio::steady_timer pause(io_, limits_.peer_pause);
                static_cast<void>(co_await pause.async_wait(asio::as_tuple(asio::use_awaitable)));
            } else if (open_ < 2 * facts_.peers.size() + limits_.peer_strangers_max) {
                asio::co_spawn(io_, serve(std::move(socket), came), asio::detached);
            }
        }
    }

    asio::awaitable<void> serve(tcp::socket socket, bool PeerFacts::*came) {
        ++open_;
        const std::optional<Hello> heard = co_await greet(socket);
        --open_;
        PeerFacts* const peer = heard ? peer_of(heard->index) : nullptr;
        if (peer != nullptr) {
            peer->*came = true;
            learn(*heard);
            end_if_done();
        }
    }

    /// Both sides speak at once. Returns nothing if the other side is none of ours.
    asio::awaitable<std::optional<Hello>> greet(tcp::socket& socket) {
        const asio::const_buffer own = asio::buffer(hello_);
        const auto [unsent, sent] =
            co_await asio::async_write(socket, own, asio::as_tuple(asio::use_awaitable));
        static_cast<void>(sent);
        if (unsent) {
            co_return std::nullopt;
        }
        std::string line;
        auto buffer = asio::dynamic_buffer(line, limits_.peer_hello_bytes_max);
        const auto [unread, got] = co_await asio::async_read_until(
            socket, buffer, '\n', asio::as_tuple(asio::use_awaitable));
        if (unread) {
            co_return std::nullopt;
        }
        line.resize(got);
        co_return read_hello(line);
    }

    asio::awaitable<void> reach_common(std::size_t number) {
        PeerFacts& peer = facts_.peers[number];
        while (peer.common.reach != Reach::Reached) {
            co_await attempt(number, peer.common, options_.port);
        }
    }

    asio::awaitable<void> reach_chosen(std::size_t number) {
        PeerFacts& peer = facts_.peers[number];
        if (peer.chosen_port == 0) {
            static_cast<void>(
                co_await known_[number]->async_wait(asio::as_tuple(asio::use_awaitable)));
        }
        while (peer.chosen.reach != Reach::Reached) {
            co_await attempt(number, peer.chosen, peer.chosen_port);
        }
    }

    /// Once; after a failure a pause follows.
    asio::awaitable<void> attempt(std::size_t number, WayTo& way, std::uint16_t port) {
        PeerFacts& peer = facts_.peers[number];
        if (way.reach == Reach::NotTried) {
            way.reach = Reach::Silent;  // until something is known
        }
        tcp::socket socket(io_);
        const tcp::endpoint there(asio::ip::make_address(peer.address), port);
        const auto [error] =
            co_await socket.async_connect(there, asio::as_tuple(asio::use_awaitable));
        if (error) {
            way = way_of(error);
        } else {
            way = {.reach = Reach::Failed,
                   .why = "something else listens there: it does not answer as ddpctl does"};
            const std::optional<Hello> heard = co_await greet(socket);
            if (heard && heard->index == indices_[number]) {
                way = {.reach = Reach::Reached};
                learn(*heard);
                end_if_done();
                co_return;
            }
        }
        asio::steady_timer pause(io_, limits_.peer_pause);
        static_cast<void>(co_await pause.async_wait(asio::as_tuple(asio::use_awaitable)));
    }

    PeerFacts* peer_of(std::size_t index) {
        const auto found = std::find(indices_.begin(), indices_.end(), index);
        return found == indices_.end()
                   ? nullptr
                   : &facts_.peers[static_cast<std::size_t>(found - indices_.begin())];
    }

    void learn(const Hello& hello) {
        PeerFacts* const peer = peer_of(hello.index);
        if (peer != nullptr && peer->chosen_port == 0) {
            peer->chosen_port = hello.port;
            known_[static_cast<std::size_t>(peer - facts_.peers.data())]->cancel();
        }
    }

    void end_if_done() {
        const bool is_done =
            std::all_of(facts_.peers.begin(), facts_.peers.end(), [](const PeerFacts& peer) {
                return peer.address.empty() || (peer.common.reach == Reach::Reached &&
                                                peer.chosen.reach == Reach::Reached &&
                                                peer.came_to_common && peer.came_to_chosen);
            });
        if (is_done) {
            io_.stop();
        }
    }

    asio::io_context io_{1};
    const PeerCheckOptions& options_;
    const Limits limits_{};
    PeersFacts facts_;
    std::vector<std::size_t> indices_;  ///< of facts_.peers in the list
    std::size_t self_;
    asio::steady_timer deadline_;
    tcp::acceptor common_;
    tcp::acceptor chosen_;
    std::vector<std::unique_ptr<asio::steady_timer>> known_;  ///< cancelled: the port is learned
    std::string hello_;
    std::size_t open_ = 0;  ///< connections that others have opened
};

}  // namespace

Result<PeersFacts> try_peers(const PeerCheckOptions& options) {
    std::set<std::string> own;
    for (const NetworkInterface& one : network_interfaces()) {
        own.insert(one.addresses.begin(), one.addresses.end());
    }
    PeersFacts facts{.self = {},
                     .port = options.port,
                     .waited_s = static_cast<int>(
                         std::chrono::duration_cast<std::chrono::seconds>(options.wait).count())};
    std::vector<std::size_t> indices;
    std::size_t self = 0;
    std::vector<std::string> all_addresses(1);  // of this node first
    for (std::size_t i = 0; i < options.hosts.size(); ++i) {
        const std::vector<std::string> addresses = addresses_of(options.hosts[i]);
        const bool is_own =
            options.self.empty()
                ? std::any_of(addresses.begin(), addresses.end(),
                              [&](const std::string& address) { return own.contains(address); })
                : options.hosts[i] == options.self;
        const std::string address = addresses.empty() ? "" : addresses.front();
        if (is_own && facts.self.empty()) {
            facts.self = options.hosts[i];
            self = i;
            all_addresses.front() = address;
        } else {
            facts.peers.push_back({.host = options.hosts[i], .address = address});
            indices.push_back(i);
            all_addresses.push_back(address);
        }
    }
    if (facts.self.empty()) {
        return Error{ErrorCode::InvalidArgument,
                     fmt::format("--peers {}: none of them has an address of this machine ({}); "
                                 "run it on each node of the list, with the same list",
                                 fmt::join(options.hosts, ","), fmt::join(own, ", "))};
    }
    if (facts.peers.empty()) {
        return Error{ErrorCode::InvalidArgument,
                     fmt::format("--peers {}: that is this machine alone; name the others, too",
                                 fmt::join(options.hosts, ","))};
    }
    fmt::print(stderr, "ddpctl: {} tries {} other node{} at port {}, for up to {} s\n", facts.self,
               facts.peers.size(), facts.peers.size() == 1 ? "" : "s", options.port,
               facts.waited_s);
    PeerCheck check(options, std::move(facts), std::move(indices), self);
    return check.run(address_to_listen_on(all_addresses));
}

}  // namespace ddprun::launcher
