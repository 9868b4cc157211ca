#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include "base/rng.hpp"

namespace ddprun::test {

/// A network between two programs that does what it is told: bytes pass from clients to one server
/// and back, late, not at all, or one way only, but always whole and in order, as TCP has them. One
/// thread; keeps itself alive while its io_context runs.
class NetworkProxy : public std::enable_shared_from_this<NetworkProxy> {
public:
    using Tcp = boost::asio::ip::tcp;
    using Milliseconds = std::chrono::milliseconds;

    /// `on_stalls` is told how many random stalls there have been, at each power of two.
    NetworkProxy(boost::asio::io_context& io, const Tcp::endpoint& listen,
                 const Tcp::endpoint& server, std::uint64_t seed,
                 std::function<void(std::uint64_t)> on_stalls);
    NetworkProxy(const NetworkProxy&) = delete;
    NetworkProxy& operator=(const NetworkProxy&) = delete;

    void start();

    [[nodiscard]] Tcp::endpoint listens_on() const { return acceptor_.local_endpoint(); }

    /// One of: `delay MS` (every byte, both ways) · `stall` · `stall-up` (to the server) ·
    /// `stall-down` · `random-stalls MS` (each connection stands still again and again, each time
    /// for up to so long) · `cut` (resets all connections and takes no more) · `heal` (undoes all
    /// of these; what was held back passes). False if it is none of them.
    bool obey(const std::string& order);

    /// Random stalls so far.
    [[nodiscard]] std::uint64_t stalls() const { return stalls_; }

private:
    /// One direction of one connection.
    struct Flow {
        explicit Flow(boost::asio::io_context& io) : wake(io) {}

        struct Chunk {
            std::chrono::steady_clock::time_point due;
            std::string bytes;  ///< none: the end of the stream
        };
        std::deque<Chunk> chunks;
        std::size_t bytes = 0;
        boost::asio::steady_timer wake;  ///< cancelled when anything has changed
    };
    struct Link {
        Link(boost::asio::io_context& io, Tcp::socket from_client)
            : client(std::move(from_client)), server(io), up(io), down(io), pause(io) {}

        Tcp::socket client;
        Tcp::socket server;
        Flow up;
        Flow down;
        boost::asio::steady_timer pause;  ///< of random stalls
        bool is_stalling = false;         ///< it has random stalls
        bool is_paused = false;           ///< one of them
        bool has_ended = false;
        int ended_flows = 0;
    };
    using Self = std::shared_ptr<NetworkProxy>;
    using LinkPtr = std::shared_ptr<Link>;

    static boost::asio::awaitable<void> accept(Self self);
    static boost::asio::awaitable<void> open(Self self, LinkPtr link);
    static boost::asio::awaitable<void> take_in(Self self, LinkPtr link, bool is_up);
    static boost::asio::awaitable<void> give_out(Self self, LinkPtr link, bool is_up);
    static boost::asio::awaitable<void> stall_at_random(Self self, LinkPtr link);
    /// Waits until the flow's wake-up timer fires or is cancelled.
    static boost::asio::awaitable<void> wait(Flow& flow,
                                             std::chrono::steady_clock::time_point until);

    [[nodiscard]] bool is_stalled(const Link& link, bool is_up) const;
    void reset(Link& link);
    void wake_all();

    boost::asio::io_context& io_;
    Tcp::acceptor acceptor_;
    const Tcp::endpoint server_;
    Rng rng_;
    const std::function<void(std::uint64_t)> on_stalls_;
    std::uint64_t stalls_ = 0;
    std::set<LinkPtr> links_;
    Milliseconds delay_{0};
    Milliseconds random_stall_max_{0};
    bool is_up_stalled_ = false;
    bool is_down_stalled_ = false;
    bool is_cut_ = false;
};

}  // namespace ddprun::test
