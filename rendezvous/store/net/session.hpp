#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "base/limits.hpp"
#include "base/os/unique_fd.hpp"
#include "rendezvous/store/core/relayed_clients.hpp"
#include "rendezvous/store/net/service.hpp"
#include "rendezvous/store/net/socket.hpp"
#include "rendezvous/store/protocol/request.hpp"

namespace ddprun::rdzv {

/// One client's connection: finds its requests, sends its replies. The service owns it. An idle
/// one holds no buffer.
class StoreSession {
public:
    /// `socket` does not block. The references outlive the session.
    StoreSession(StoreService& service, StoreClient client, UniqueFd socket, const Limits& limits);
    ~StoreSession();
    StoreSession(const StoreSession&) = delete;
    StoreSession& operator=(const StoreSession&) = delete;

    /// Takes the bytes that were read from the socket before it came here.
    void on_first_bytes(std::string_view bytes);

    /// The socket has something to read, or room, or failed.
    void on_event(std::uint32_t events);

    /// The backend has room for requests, or has no more.
    void on_room();

    /// Sends `bytes` and then `shared`, if there is any: now what the kernel takes, later the rest.
    /// False: the client is gone, and the caller drops it. One that has too much unsent is cut off.
    [[nodiscard]] bool send(std::string_view bytes, const SharedText& shared);

    /// Disconnects; nothing happens to the session any more.
    void close();

    [[nodiscard]] bool is_open() const { return socket_.is_open(); }
    [[nodiscard]] StoreClient client() const { return client_; }

    /// It has said RELAY.
    [[nodiscard]] bool is_relay() const { return relayed_ != nullptr; }
    /// Only if is_relay().
    [[nodiscard]] RelayedClients& relayed() { return *relayed_; }
    /// Sends the frames that relayed() has collected; false as send().
    [[nodiscard]] bool send_frames();

    /// The client's address, for people.
    [[nodiscard]] std::string peer_text() const;

private:
    /// Memory of malloc(), because that can grow without being copied.
    struct Free {
        void operator()(char* memory) const { std::free(memory); }
    };
    using Buffer = std::unique_ptr<char, Free>;

    void read(bool is_ending);
    void take_in(std::string_view bytes);
    [[nodiscard]] std::size_t handle_requests(std::string_view bytes,
                                              std::shared_ptr<const void>& owner);
    void keep(std::string_view rest);
    [[nodiscard]] std::size_t capacity_for(std::size_t arrived) const;
    void give_back_buffer();
    void update_watch();
    void update_stall();
    [[nodiscard]] Result<void> handle(std::string_view request,
                                      const std::shared_ptr<const void>& owner);
    [[nodiscard]] std::size_t unsent_bytes_max() const;
    /// A client that does not read its replies is not read from either.
    [[nodiscard]] bool is_paused() const {
        return unsent_.size() > limits_.send_queue_bytes_max || !service_.has_room();
    }

    StoreService& service_;
    const Limits& limits_;
    UniqueFd socket_;
    StoreClient client_;
    std::uint32_t watched_ = 0;
    bool is_behind_ = false;  ///< there is perhaps more to read than one turn allows
    RequestSplitter splitter_;
    Buffer buffer_;             ///< an incomplete request and what follows; null for none
    std::size_t capacity_ = 0;  ///< of the service's partial()
    std::size_t filled_ = 0;
    StoreOutbox unsent_;
    std::unique_ptr<RelayedClients> relayed_;  ///< of a relay
    std::uint64_t requests_ = 0;               ///< complete ones
    StoreStalls::Stall stall_;
};

}  // namespace ddprun::rdzv
