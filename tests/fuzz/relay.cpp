// Goal: a relay neither mixes up nor loses anything, whatever its clients and its store say, and
// however the network cuts it. Method: the input is either what a store sends, given whole and in
// pieces, or requests of four clients, which go through a relay into a store's core; the order in
// which they arrive must be one that clients without a relay could have seen, and each client must
// get what another core answers that is asked in this order directly.

#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.hpp"
#include "rendezvous/store/core/store_core.hpp"
#include "rendezvous/store/protocol/request.hpp"
#include "rendezvous/store/relay/relay_core.hpp"
#include "tests/fuzz/choices.hpp"
#include "tests/fuzz/store_model.hpp"
#include "tests/support/store_requests.hpp"

namespace ddprun::rdzv {

namespace {

constexpr std::uint32_t kClients = 4;

Limits small_limits() {
    Limits limits;
    limits.store_key_bytes_max = 8;
    limits.store_value_bytes_max = 64;
    limits.store_keys_per_request_max = 16;
    limits.store_request_bytes_max = 256;
    limits.store_reply_bytes_max = 256;
    limits.slots_max = 3;
    return limits;
}

using Sent = std::map<std::uint32_t, std::string>;

void deliver(const StoreReplies& replies, Sent& sent) {
    std::size_t begin = 0;
    for (const StoreReplies::Piece& piece : replies.pieces()) {
        if (piece.is_last) {
            continue;  // Here no client is disconnected for that.
        }
        sent[piece.client.value()] += replies.bytes().substr(begin, piece.size);
        sent[piece.client.value()] += piece.shared.bytes;
        begin += piece.size;
    }
}

// ---------------------------------------------------------------------------------------- bytes

/// Returns the bytes for a relay's clients, and whether it took the store's bytes to their end.
std::pair<Sent, bool> passed_on(std::string_view stream, std::string_view sizes,
                                const Limits& limits) {
    RelayCore core(limits);
    for (std::uint32_t client = 1; client <= kClients; ++client) {
        core.handle(StoreClient(client), store_test::validate());
    }
    Sent sent;
    while (!stream.empty()) {
        std::size_t size = stream.size();
        if (!sizes.empty()) {
            size = std::min<std::size_t>(size, static_cast<unsigned char>(sizes.front()) % 32);
            sizes.remove_prefix(1);
        }
        const std::vector<char> bytes(stream.begin(),
                                      stream.begin() + static_cast<std::ptrdiff_t>(size));
        stream.remove_prefix(size);
        StoreReplies replies;
        const bool is_taken = core.take_replies({bytes.data(), bytes.size()}, replies).has_value();
        deliver(replies, sent);
        if (!is_taken) {
            return {sent, false};
        }
    }
    return {sent, true};
}

void check_bytes(fuzz::Choices& choices) {
    const Limits limits = small_limits();
    const std::string_view sizes = choices.bytes(choices.below(16));
    const std::string_view stream = choices.rest();
    DDP_CHECK(passed_on(stream, {}, limits) == passed_on(stream, sizes, limits), stream.size());
}

// ------------------------------------------------------------------------------------- requests

/// The requests of clients, in the order in which they come.
class Questions {
public:
    void ask(std::uint32_t client, const fuzz::StoreRequest& request) {
        open_[client].push_back({.place = next_place_++, .bytes = request.bytes});
    }

    /// A client's oldest one is carried out. One without a reply must come before everything that
    /// was asked later: its client has gone on, and others may know.
    void carry_out(std::uint32_t client, std::string_view request) {
        DDP_CHECK(!open_[client].empty(), client);
        const Question question = open_[client].front();
        open_[client].pop_front();
        DDP_CHECK(question.bytes == request, client, question.place);
        const StoreOpcode opcode{static_cast<std::uint8_t>(request.front())};
        if (opcode == StoreOpcode::Set || opcode == StoreOpcode::Append ||
            opcode == StoreOpcode::MultiSet || opcode == StoreOpcode::QueuePush) {
            DDP_CHECK(last_place_ <= question.place, last_place_, question.place);
        }
        last_place_ = std::max(last_place_, question.place);
    }

    [[nodiscard]] bool are_all_carried_out() const {
        return std::all_of(open_.begin(), open_.end(),
                           [](const auto& entry) { return entry.second.empty(); });
    }

private:
    struct Question {
        std::size_t place;
        std::string bytes;
    };

    std::map<std::uint32_t, std::deque<Question>> open_;
    std::size_t next_place_ = 0;
    std::size_t last_place_ = 0;  ///< of those carried out
};

/// A store's end of a relay's connection, and a second core that is asked the same directly.
class Store {
public:
    explicit Store(const Limits& limits)
        : limits_(limits),
          splitter_(limits_, RequestSplitter::Relays::Taken),
          core_(limits_),
          direct_(limits_),
          clients_(frame_clients_max(limits_)) {
        std::string hello = store_test::validate() + store_test::opcode(StoreOpcode::Relay);
        append_u32(hello, kRelayVersion);
        DDP_CHECK(splitter_.split(hello).value() == 5, hello.size());
        DDP_CHECK(splitter_.split(hello.substr(5)).value() == 5, hello.size());
        DDP_CHECK(splitter_.is_relay(), hello.size());
    }

    /// Carries out what a relay has sent; what it gets for that.
    std::string take(std::string_view bytes, Questions& questions) {
        StoreReplies replies;
        while (!bytes.empty()) {
            const Result<std::size_t> size = splitter_.split(bytes);
            DDP_CHECK(size.has_value() && *size > 0, bytes.size());
            carry_out(bytes.substr(0, *size), replies, questions);
            bytes.remove_prefix(*size);
        }
        std::string_view rest = replies.bytes();
        for (const StoreReplies::Piece& piece : replies.pieces()) {
            clients_.reply(piece.client.value(), rest.substr(0, piece.size), piece.shared);
            rest.remove_prefix(piece.size);
        }
        std::string out;
        for (const RelayFrames& frames : clients_.take_frames()) {
            out.append(frames.bytes).append(frames.shared.bytes);
        }
        return out;
    }

    [[nodiscard]] const Sent& sent_directly() const { return sent_directly_; }

private:
    void carry_out(std::string_view frame, StoreReplies& replies, Questions& questions) {
        FieldReader fields(frame);
        std::vector<std::uint32_t> numbers(fields.u32());
        for (std::uint32_t& number : numbers) {
            number = fields.u32();
        }
        const std::string_view request = fields.rest();
        for (const std::uint32_t number : numbers) {
            if (StoreOpcode{static_cast<std::uint8_t>(request.front())} == StoreOpcode::Enter) {
                DDP_CHECK(clients_.enter(number, StoreClient(number)), number);
                continue;
            }
            questions.carry_out(number, request);
            StoreReplies direct;
            const bool is_done = core_.handle(StoreClient(number), request, replies).has_value();
            DDP_CHECK(is_done == direct_.handle(StoreClient(number), request, direct).has_value(),
                      number);
            if (!is_done) {
                clients_.reply(number, {}, {});  // As if it were disconnected: the relay goes on.
            }
            deliver(direct, sent_directly_);
        }
    }

    const Limits limits_;
    RequestSplitter splitter_;
    StoreCore core_;
    StoreCore direct_;
    RelayedClients clients_;
    Sent sent_directly_;
};

void check_requests(fuzz::Choices& choices) {
    const Limits limits = small_limits();
    RelayCore relay(limits);
    Store store(limits);
    Questions questions;
    Sent sent;
    const auto turn = [&] {
        std::string bytes;
        for (const RelayFrames& frames : relay.take_frames()) {
            bytes.append(frames.bytes).append(frames.shared.bytes);
        }
        StoreReplies replies;
        DDP_CHECK(relay.take_replies(store.take(bytes, questions), replies).has_value(),
                  bytes.size());
        deliver(replies, sent);
    };
    for (std::uint32_t client = 1; client <= kClients; ++client) {
        relay.handle(StoreClient(client), store_test::validate());
    }
    while (!choices.is_empty()) {
        const std::uint32_t client = 1 + choices.below(kClients);
        const fuzz::StoreRequest request = fuzz::choose_request(choices);
        if (!request.is_end) {
            questions.ask(client, request);
            relay.handle(StoreClient(client), request.bytes);
        }
        if (choices.flag()) {
            turn();
        }
    }
    turn();
    DDP_CHECK(relay.waiting_bytes() == 0 && questions.are_all_carried_out(), relay.waiting_bytes());
    DDP_CHECK(sent == store.sent_directly(), sent.size());
}

}  // namespace

}  // namespace ddprun::rdzv

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    ddprun::fuzz::Choices choices(data, size);
    if (choices.flag()) {
        ddprun::rdzv::check_bytes(choices);
    } else {
        ddprun::rdzv::check_requests(choices);
    }
    return 0;
}
