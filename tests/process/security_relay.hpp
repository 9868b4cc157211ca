#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>

namespace ddprun::rdzv {

/// Stands between an agent and its daemon, as an attacker on the way would: hears every byte of
/// both directions, and may say some of its own. One connection.
class Relay {
public:
    Relay(boost::asio::io_context& io, std::uint16_t daemon_port)
        : acceptor_(io, {boost::asio::ip::address_v4::loopback(), 0}),
          agent_(io),
          daemon_(io),
          daemon_port_(daemon_port) {
        acceptor_.async_accept(agent_, [this](boost::system::error_code failure) {
            if (!failure) {
                daemon_.connect({boost::asio::ip::address_v4::loopback(), daemon_port_});
                pass(agent_, daemon_, to_daemon_, from_agent);
                pass(daemon_, agent_, to_agent_, from_daemon);
            }
        });
    }
    Relay(const Relay&) = delete;
    Relay& operator=(const Relay&) = delete;

    [[nodiscard]] std::uint16_t port() const { return acceptor_.local_endpoint().port(); }

    void say_to_daemon(const std::string& bytes) {
        boost::asio::write(daemon_, boost::asio::buffer(bytes));
    }
    void say_to_agent(const std::string& bytes) {
        boost::asio::write(agent_, boost::asio::buffer(bytes));
    }

    std::string from_agent;   ///< everything so far
    std::string from_daemon;  ///< everything so far
    bool is_closed = false;   ///< by either side

private:
    using Socket = boost::asio::ip::tcp::socket;
    using Chunk = std::array<char, 4096>;

    void pass(Socket& from, Socket& to, Chunk& chunk, std::string& record) {
        from.async_read_some(boost::asio::buffer(chunk),
                             [&, this](boost::system::error_code failure, std::size_t count) {
                                 if (failure) {
                                     is_closed = true;
                                     boost::system::error_code ignored;
                                     to.close(ignored);
                                     return;
                                 }
                                 record.append(chunk.data(), count);
                                 boost::system::error_code ignored;
                                 boost::asio::write(to, boost::asio::buffer(chunk, count), ignored);
                                 pass(from, to, chunk, record);
                             });
    }

    boost::asio::ip::tcp::acceptor acceptor_;
    Socket agent_;
    Socket daemon_;
    std::uint16_t daemon_port_;
    Chunk to_daemon_{};
    Chunk to_agent_{};
};

}  // namespace ddprun::rdzv
