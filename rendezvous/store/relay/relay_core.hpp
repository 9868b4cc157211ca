#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/limits.hpp"
#include "base/result.hpp"
#include "rendezvous/store/core/relayed_clients.hpp"
#include "rendezvous/store/protocol/replies.hpp"
#include "rendezvous/store/protocol/value.hpp"

namespace ddprun::rdzv {

/// Combines the requests of a relay's clients into frames for the store, and splits the store's
/// frames into replies; without time, threads or sockets. rendezvous/store/relay/README.md says
/// which requests are combined.
class RelayCore {
public:
    /// `limits` outlives the core.
    explicit RelayCore(const Limits& limits) : limits_(&limits) {}
    RelayCore(const RelayCore&) = delete;
    RelayCore& operator=(const RelayCore&) = delete;

    /// One complete request, as RequestSplitter delimits it, of a client that begins with VALIDATE.
    /// When `owner` keeps the memory alive in which it lies, a big one is not copied.
    void handle(StoreClient client, std::string_view request,
                const std::shared_ptr<const void>& owner = {});

    /// The client is gone, and its number may be given to another. The relay still carries out its
    /// earlier requests that need no reply.
    void disconnected(StoreClient client);

    /// Moves out what is to be sent to the store for all that was handled since the last time.
    /// Nothing while the store owes an answer that comes at once to what it was sent before: what
    /// comes meanwhile goes together.
    [[nodiscard]] std::vector<RelayFrames> take_frames();

    /// Bytes of the requests that take_frames() has not moved out.
    [[nodiscard]] std::size_t waiting_bytes() const { return waiting_bytes_; }

    /// Bytes that the store has sent, in any segmentation. After a failure, whose text is for
    /// people, the connection to the store is of no use.
    [[nodiscard]] Result<void> take_replies(std::string_view bytes, StoreReplies& replies);

    /// The connection to the store is over: every client is disconnected, and the next connection
    /// begins anew.
    void lose_store(StoreReplies& replies);

    [[nodiscard]] bool has_clients() const { return !clients_.empty(); }

private:
    /// One request and who sends it.
    struct Asked {
        std::vector<std::uint32_t> numbers;
        std::string request;
        SharedText shared;  ///< in place of `request`
    };
    struct Client {
        std::uint32_t number = 0;
        std::uint64_t batch = 0;     ///< in which it asked last
        std::size_t next_place = 0;  ///< then: behind that request in asked_
    };

    void ask(Client& client, std::string_view request, const std::shared_ptr<const void>& owner);
    [[nodiscard]] Result<bool> read_header(std::string_view& bytes);
    void pass_on(std::string_view bytes, StoreReplies& replies);

    const Limits* limits_;
    std::map<StoreClient, Client> clients_;
    std::map<std::uint32_t, StoreClient> by_number_;
    std::uint32_t last_number_ = 0;  ///< none is used twice on one connection
    // This batch: the requests that take_frames() will move out.
    std::uint64_t batch_ = 1;
    std::vector<Asked> asked_;
    TextMap<std::size_t> joinable_;  ///< places in asked_, by request
    std::size_t waiting_bytes_ = 0;
    /// The batch before is answered when this client is, or is disconnected; none: it need not be.
    std::optional<std::uint32_t> awaited_;
    // The frame that is arriving.
    std::string header_;
    std::vector<std::uint32_t> answered_;  ///< whom it is for; empty before its header is complete
    std::uint64_t left_ = 0;               ///< bytes still to come
};

}  // namespace ddprun::rdzv
