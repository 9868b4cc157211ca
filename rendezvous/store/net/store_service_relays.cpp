// What a store does for relays: requests of many clients in, frames of replies out.

#include <utility>

#include <fmt/format.h>

#include "rendezvous/store/net/store_service.hpp"
#include "rendezvous/store/net/store_session.hpp"
#include "rendezvous/store/protocol/store_protocol.hpp"

namespace ddprun::rdzv {

Result<void> StoreService::handle_relayed(StoreSession& relay, std::string_view request,
                                          const std::shared_ptr<const void>& owner) {
    FieldReader fields(request);
    std::vector<std::uint32_t> numbers(fields.u32());
    for (std::uint32_t& number : numbers) {
        number = fields.u32();
    }
    const std::string_view asked = fields.rest();
    const StoreOpcode opcode{static_cast<std::uint8_t>(asked.front())};
    for (const std::uint32_t number : numbers) {
        if (opcode == StoreOpcode::Enter) {
            if (Result<void> entered = enter(relay, number); !entered) {
                return entered;
            }
            continue;
        }
        // None: the client was disconnected here, which the relay does not know yet.
        const std::optional<StoreClient> client = relay.relayed().find(number);
        if (!client) {
            continue;
        }
        if (opcode == StoreOpcode::Leave) {
            relay.relayed().leave(number);
            drop(*client);
        } else if (const Result<void> done = handle(*client, asked, owner); !done) {
            relay.relayed().leave(number);  // What it has sent after that counts no more.
            cut_off(*client, done.error());
        } else if (replies_.size() > limits_.send_queue_bytes_max) {
            settle();
            if (!relay.is_open()) {
                break;
            }
        }
    }
    return {};
}

/// Failure is a mistake of the relay's; a client too many is only disconnected.
Result<void> StoreService::enter(StoreSession& relay, std::uint32_t number) {
    if (relay.relayed().find(number)) {
        return Error{ErrorCode::BadMessage,
                     fmt::format("client {} of a relay has come twice", number)};
    }
    const StoreClient client = take_number();
    static_cast<void>(relay.relayed().enter(number, client));
    clients_[client.value()] = {.session = nullptr, .relay = &relay, .number = number};
    if (connected() > limits_.store_clients_max) {
        relay.relayed().leave(number);
        cut_off(client, Error{ErrorCode::LimitExceeded,
                              fmt::format("{} clients are connected, and that is the limit",
                                          limits_.store_clients_max)});
    }
    return {};
}

void StoreService::owe_frame(const Client& client, std::string_view bytes,
                             const SharedText& shared) {
    if (client.relay->relayed().reply(client.number, bytes, shared)) {
        owed_frames_.push_back(client.relay);
    }
}

void StoreService::send_frames() {
    for (StoreSession* const relay : std::exchange(owed_frames_, {})) {
        if (!relay->send_frames()) {
            drop(relay->client());
        }
    }
}

/// The relay is told, also when it has said so itself.
void StoreService::forget_relayed(const Client& client) {
    if (client.relay->is_open()) {
        owe_frame(client, {}, {});
    }
}

/// The connection of `relay` is closed: with it all that came through it are gone.
void StoreService::forget_relay(StoreSession& relay) {
    if (relay.is_relay()) {
        std::erase(owed_frames_, &relay);
        for (const StoreClient client : relay.relayed().all()) {
            drop(client);
        }
    }
}

}  // namespace ddprun::rdzv
