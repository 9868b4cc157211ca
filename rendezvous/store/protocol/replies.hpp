#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/tagged.hpp"
#include "rendezvous/store/protocol/value.hpp"

namespace ddprun::rdzv {

/// One connection of a store; the shell gives the numbers and may reuse them.
using StoreClient = Tagged<struct StoreClientTag, std::uint32_t>;

/// Bytes to send, in this order: the first `size` of `bytes` to the first piece's client, and so
/// on. One growing buffer, so that answering costs no allocation; big values lie elsewhere.
class StoreReplies {
public:
    struct Piece {
        StoreClient client;
        std::size_t size = 0;    ///< of bytes()
        SharedText shared = {};  ///< sent after those; often none
        bool is_last = false;    ///< then the client is disconnected
    };

    [[nodiscard]] const std::vector<Piece>& pieces() const { return pieces_; }
    [[nodiscard]] const std::string& bytes() const { return bytes_; }
    /// Size of bytes() and of all shared texts.
    [[nodiscard]] std::size_t size() const { return bytes_.size() + shared_bytes_; }
    [[nodiscard]] bool empty() const { return pieces_.empty(); }
    void clear();

    /// The buffer, to which the caller appends a reply for `client`; end_reply() follows.
    std::string& begin_reply(StoreClient client);
    void end_reply();
    /// The client is disconnected, without being sent what it has not been sent before.
    void disconnect(StoreClient client);
    /// A big value is sent by reference.
    void reply_value(StoreClient client, StoreValue& value);

private:
    std::string bytes_;
    std::size_t shared_bytes_ = 0;
    std::vector<Piece> pieces_;
    StoreClient client_;
    std::size_t begin_ = 0;
};

}  // namespace ddprun::rdzv
