#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "rendezvous/base/unique_fd.hpp"
#include "rendezvous/protocol/limits.hpp"
#include "rendezvous/store/store_protocol.hpp"
#include "rendezvous/store/store_service.hpp"

namespace ddprun::rdzv {

/// One client's connection: finds its requests, sends its replies. The service owns it. An idle
/// one holds no buffer.
class StoreSession {
public:
    /// `socket` does not block. The references outlive the session.
    StoreSession(StoreService& service, StoreClient client, UniqueFd socket, const Limits& limits);

    /// The socket has something to read, or room, or failed.
    void on_event(std::uint32_t events);

    /// Sends now what the kernel takes and keeps the rest. False: the client is gone, and the
    /// caller drops it. One that has too much unsent is cut off.
    [[nodiscard]] bool send(std::string_view bytes);

    /// Disconnects; nothing happens to the session any more.
    void close();

    [[nodiscard]] int fd() const { return socket_.get(); }
    /// The client's address, for people.
    [[nodiscard]] std::string peer_text() const;

private:
    void read();
    [[nodiscard]] std::size_t handle_requests(std::string_view bytes);
    void keep(std::string_view rest);
    [[nodiscard]] bool send_unsent();
    void update_watch();
    /// A client that does not read its replies is not read from either.
    [[nodiscard]] bool is_paused() const {
        return unsent_.size() - sent_ > limits_.send_queue_bytes_max;
    }

    StoreService& service_;
    const Limits& limits_;
    UniqueFd socket_;
    StoreClient client_;
    std::uint32_t watched_ = 0;
    RequestSplitter splitter_;
    std::unique_ptr<char[]> buffer_;  ///< an incomplete request and what follows; null for none
    std::size_t capacity_ = 0;
    std::size_t filled_ = 0;
    std::string unsent_;
    std::size_t sent_ = 0;  ///< bytes of unsent_ that are sent
};

}  // namespace ddprun::rdzv
