#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>

#include "rendezvous/client/rendezvous_client.hpp"
#include "rendezvous/server/server.hpp"
#include "rendezvous/transport/listener.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/result_text.hpp"

/// A real daemon and real clients on one loop and one thread, on loopback. They are declared after
/// the loop, and go before it. One that goes while the loop still runs ends first: Daemon::end(),
/// RendezvousClient::stop().
namespace ddprun::rdzv {

inline JobSecret secret_of(unsigned char byte) {
    JobSecret::Bytes bytes{};
    bytes.fill(byte);
    return JobSecret(bytes, "/home/me/secret");
}

/// Runs the loop until `is_reached`; fails the test if that takes far too long.
inline void run_until(boost::asio::io_context& io, const std::function<bool()>& is_reached) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!is_reached()) {
        io.restart();
        io.run_one_until(deadline);
        REQUIRE(std::chrono::steady_clock::now() < deadline);
    }
}

struct Daemon {
    struct Options {
        std::optional<JobSecret> secret = secret_of(1);
        Limits limits;
        std::uint16_t port = 0;
        bool is_one_of_several = false;
        bool serves_tcpstore = false;
        bool exits_when_idle = false;
        Milliseconds idle_start_timeout{30000};
        std::shared_ptr<const TlsContext> tls;
        std::optional<JobSecret> operator_secret = std::nullopt;
    };

    Daemon(boost::asio::io_context& io, Options options) {
        Result<Listener> listener = listen_on("127.0.0.1", options.port);
        REQUIRE(listener);
        port = listener->port;
        ServerOptions server_options;
        server_options.listener = std::move(listener->fd);
        server_options.secret = options.secret;
        server_options.operator_secret = options.operator_secret;
        server_options.http.operator_secret = options.operator_secret;
        server_options.tls = options.tls;
        server_options.limits = options.limits;
        server_options.is_one_of_several = options.is_one_of_several;
        server_options.serves_tcpstore = options.serves_tcpstore;
        server_options.exits_when_idle = options.exits_when_idle;
        server_options.idle_start_timeout = options.idle_start_timeout;
        server_options.log = [this](const std::string& line) { log.push_back(line); };
        server = std::make_unique<Server>(io, std::move(server_options));
        server->start([this] { has_ended = true; });
    }
    explicit Daemon(boost::asio::io_context& io) : Daemon(io, Options()) {}
    Daemon(const Daemon&) = delete;
    Daemon& operator=(const Daemon&) = delete;

    /// As when its process ends: it stops, and is gone once the loop has nothing of it left.
    void end(boost::asio::io_context& io) {
        server->stop();
        io.restart();
        io.poll();
        REQUIRE(server->connection_count() == 0);
        server.reset();
    }

    [[nodiscard]] bool has_logged(const std::string& text) const {
        for (const std::string& line : log) {
            if (line.find(text) != std::string::npos) {
                return true;
            }
        }
        return false;
    }

    [[nodiscard]] std::string endpoint() const { return to_string(Endpoint{"127.0.0.1", port}); }

    std::uint16_t port = 0;
    std::vector<std::string> log;
    bool has_ended = false;
    std::unique_ptr<Server> server;
};

/// An agent as far as the wire goes: joins when it is up, remembers what it is told.
struct Agent {
    struct Options {
        std::uint16_t port = 0;
        std::uint16_t other_port = 0;  ///< of a second daemon; 0: there is none
        std::string job = "llama";
        std::string node = "n0";
        int nodes = 1;
        std::optional<JobSecret> secret = secret_of(1);
        bool joins = true;
        Limits limits;
        std::shared_ptr<const TlsContext> tls;
        StoreAddress store{"127.0.0.1", 1};
        int min_nodes = 0;  ///< 0: all
        bool store_admits_any = false;
        bool tells_progress = true;
        bool shows_workers = false;
    };

    Agent(boost::asio::io_context& io, Options chosen) : options(std::move(chosen)) {
        ClientOptions client_options;
        client_options.endpoints = {Endpoint{"127.0.0.1", options.port}};
        if (options.other_port != 0) {
            client_options.endpoints.push_back(Endpoint{"127.0.0.1", options.other_port});
        }
        client_options.secret = options.secret;
        client_options.tls = options.tls;
        client_options.job = JobId(options.job);
        client_options.limits = options.limits;
        client_options.before_attempt = [this](const Endpoint&, const std::vector<Endpoint>&,
                                               bool) { ++attempts; };
        client = std::make_unique<RendezvousClient>(io, std::move(client_options));
        LinkEvents events;
        events.on_up = [this](const std::string& address, const Endpoint&) {
            ++ups;
            local_address = address;
            if (options.joins) {
                client->send(join());
            }
        };
        events.on_down = [this](const std::string& why, bool is_final) {
            downs.push_back(why);
            is_down_for_good = is_final;
        };
        events.on_message = [this](RendezvousMessage message) {
            messages.push_back(std::move(message));
            if (hears) {
                hears(messages.back());
            }
        };
        client->start(std::move(events));
    }
    Agent(const Agent&) = delete;
    Agent& operator=(const Agent&) = delete;

    [[nodiscard]] Join join() const {
        Join message;
        message.job = JobId(options.job);
        message.node = NodeId(options.node);
        message.hostname = options.node;
        message.slots = 2;
        message.addresses = {"127.0.0.1"};
        message.store = options.store;
        message.tells_progress = options.tells_progress;
        message.shows_workers = options.shows_workers;
        message.settings.store_admits_any = options.store_admits_any;
        message.settings.min_nodes = options.min_nodes > 0 ? options.min_nodes : options.nodes;
        message.settings.max_nodes = options.nodes;
        return message;
    }

    /// The last message of that type, or null.
    template <typename T>
    [[nodiscard]] const T* last() const {
        for (auto message = messages.rbegin(); message != messages.rend(); ++message) {
            if (const T* found = std::get_if<T>(&*message)) {
                return found;
            }
        }
        return nullptr;
    }

    template <typename T>
    [[nodiscard]] std::size_t count() const {
        return static_cast<std::size_t>(std::count_if(
            messages.begin(), messages.end(),
            [](const RendezvousMessage& message) { return std::holds_alternative<T>(message); }));
    }

    /// It went down for that reason.
    [[nodiscard]] bool has_lost(const std::string& why) const {
        return std::any_of(downs.begin(), downs.end(), [&](const std::string& down) {
            return down.find(why) != std::string::npos;
        });
    }

    Options options;
    int attempts = 0;
    int ups = 0;
    std::string local_address;
    std::vector<std::string> downs;
    bool is_down_for_good = false;
    std::vector<RendezvousMessage> messages;
    std::function<void(const RendezvousMessage&)> hears;  ///< each message, at once; may be empty
    std::unique_ptr<RendezvousClient> client;
};

/// A peer that does not know the protocol.
struct Stranger {
    Stranger(boost::asio::io_context& io, std::uint16_t port, const char* from = "127.0.0.1")
        : socket(io) {
        socket.open(boost::asio::ip::tcp::v4());
        socket.bind({boost::asio::ip::make_address(from), 0});
        socket.connect({boost::asio::ip::address_v4::loopback(), port});
        read();
    }
    Stranger(const Stranger&) = delete;
    Stranger& operator=(const Stranger&) = delete;

    void say(const std::string& bytes) { boost::asio::write(socket, boost::asio::buffer(bytes)); }

    boost::asio::ip::tcp::socket socket;
    std::string heard;
    bool is_closed = false;

private:
    void read() {
        socket.async_read_some(boost::asio::buffer(chunk_),
                               [this](boost::system::error_code failure, std::size_t count) {
                                   if (failure == boost::asio::error::operation_aborted) {
                                       return;
                                   }
                                   heard.append(chunk_.data(), count);
                                   is_closed = static_cast<bool>(failure);
                                   if (!failure) {
                                       read();
                                   }
                               });
    }

    std::array<char, 1024> chunk_{};
};

}  // namespace ddprun::rdzv
