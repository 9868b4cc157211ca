#pragma once

#include <netinet/in.h>
#include <sys/epoll.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/os/unique_fd.hpp"

namespace ddprun::test {

/// The server under load; clients take one of several ports in turn.
struct StoreTarget {
    std::vector<std::uint16_t> ports;
    /// How many loopback addresses the clients come from: 127.0.0.1, or 127.1.0.1 and following
    /// ones, which stand in no hosts file.
    int source_addresses = 0;
    /// Each connection is a relay's that has so many clients, from number 1 on; 0: a client's.
    std::uint32_t relayed_clients = 0;
};

/// A blocking connection that has done nothing yet. The program ends when it cannot be made.
[[nodiscard]] UniqueFd connect_to_store(const StoreTarget& target);

/// VALIDATE, then PING: what every PyTorch client sends first. Answered with the nonce.
[[nodiscard]] std::string store_hello();
inline constexpr std::size_t kHelloReplyBytes = 4;

/// The same `request` of clients 1 to `clients` of a relay, and how long a reply is that is one for
/// all of them.
[[nodiscard]] std::string relayed(std::uint32_t clients, std::string_view request);
[[nodiscard]] std::size_t relayed_bytes(std::uint32_t clients, std::size_t reply_bytes);

/// Many clients of one store on one thread, each with one request at a time. How a reply looks is
/// known beforehand, so only its bytes are counted.
class StoreCrowd {
public:
    using Clock = std::chrono::steady_clock;
    /// A client's reply is complete; it may be asked again. `reply` holds the last bytes of it, all
    /// of a short one.
    using OnReply = std::function<void(std::size_t client, std::string_view reply)>;

    StoreCrowd(StoreTarget target, std::size_t clients);
    /// Resets the connections, so that no port of theirs is in TIME_WAIT.
    ~StoreCrowd();
    StoreCrowd(const StoreCrowd&) = delete;
    StoreCrowd& operator=(const StoreCrowd&) = delete;

    /// Begins to connect all clients at once and returns when each has been greeted or has failed.
    void connect_all();

    /// Sends `request` now(), whose reply has `reply_bytes` bytes; none at all is no wait.
    void ask(std::size_t client, std::string_view request, std::size_t reply_bytes);

    /// Until no client waits for a reply any more.
    void run(const OnReply& on_reply);

    /// Read once for each reply: before that, and when run() has not been called, set_now().
    [[nodiscard]] Clock::time_point now() const { return now_; }
    void set_now() { now_ = Clock::now(); }

    [[nodiscard]] std::size_t size() const { return clients_.size(); }
    /// Connections that ended, or could not be made.
    [[nodiscard]] std::size_t lost() const { return lost_; }
    /// When client was last asked.
    [[nodiscard]] Clock::time_point asked_at(std::size_t client) const {
        return clients_[client].asked_at;
    }
    /// Microseconds from connect() to the greeting, of each client that was greeted.
    [[nodiscard]] const std::vector<double>& greeting_us() const { return greeting_us_; }

private:
    struct Client {
        UniqueFd fd;
        std::size_t missing = 0;  ///< bytes of the reply
        std::size_t filled = 0;   ///< bytes in `reply`
        std::array<char, 16> reply;
        Clock::time_point asked_at;
        bool is_greeted = false;
        bool is_connecting = false;
    };

    void begin_connecting(std::size_t index);
    void greet(std::size_t index);
    void read(std::size_t index, const OnReply& on_reply);
    void lose(std::size_t index);
    void turn(const std::function<void(std::size_t, std::uint32_t)>& on_event);

    StoreTarget target_;
    UniqueFd epoll_;
    std::vector<Client> clients_;
    std::vector<char> scratch_;
    std::vector<epoll_event> events_;
    std::vector<double> greeting_us_;
    Clock::time_point now_;
    std::size_t busy_ = 0;  ///< clients that wait for something
    std::size_t lost_ = 0;
};

}  // namespace ddprun::test
