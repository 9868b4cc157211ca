#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/store/protocol/replies.hpp"
#include "rendezvous/store/protocol/value.hpp"

namespace ddprun::rdzv {

/// Bytes on their way between relay and store: some frames, and a value that is not copied.
struct RelayFrames {
    std::string bytes;
    SharedText shared = {};  ///< follows them; often none
};

/// The place to append to `frames`; a new frame when the last has its value already.
[[nodiscard]] std::string& end_of(std::vector<RelayFrames>& frames);

/// How many, then each: how a frame begins, in both directions.
void append_clients(std::string& out, const std::vector<std::uint32_t>& numbers);

/// The clients behind one relay's connection, by the numbers the relay has given them, and the
/// frames that carry replies to them. A relay never uses a number twice.
class RelayedClients {
public:
    /// `frame_clients_max`: named by one frame.
    explicit RelayedClients(std::size_t frame_clients_max)
        : frame_clients_max_(frame_clients_max) {}

    [[nodiscard]] std::optional<StoreClient> find(std::uint32_t number) const;
    /// False: the number is in use.
    [[nodiscard]] bool enter(std::uint32_t number, StoreClient client);
    void leave(std::uint32_t number) { clients_.erase(number); }
    [[nodiscard]] std::vector<StoreClient> all() const;

    /// Sends the client `bytes`, then `shared`, if there is any; neither at all says that it is
    /// disconnected. Equal replies to several clients in a row travel once. `bytes` must stay until
    /// take_frames(). True: nothing has waited for that before.
    bool reply(std::uint32_t number, std::string_view bytes, const SharedText& shared);

    /// Moves out what is to be sent, in this order.
    [[nodiscard]] std::vector<RelayFrames> take_frames();

private:
    struct Client {
        StoreClient client;
        std::uint64_t frame = 0;  ///< the last one that names it
    };

    void seal();

    const std::size_t frame_clients_max_;
    std::map<std::uint32_t, Client> clients_;
    std::uint64_t open_frame_ = 1;             ///< which one others may still join
    std::vector<std::uint32_t> open_numbers_;  ///< none twice, as a frame may arrive in parts
    std::string_view open_bytes_;
    SharedText open_shared_;
    std::vector<RelayFrames> frames_;
};

}  // namespace ddprun::rdzv
