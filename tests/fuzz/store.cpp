// Goal: the worker store answers what its specification says, however the network cuts requests and
// whichever client waits. Method: the input either is the bytes of one connection, split whole and
// in pieces, or becomes requests of four clients, whose replies are held against plain maps.
#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.hpp"
#include "rendezvous/store/core/store_core.hpp"
#include "tests/fuzz/choices.hpp"
#include "tests/fuzz/store_model.hpp"
#include "tests/support/store_requests.hpp"

namespace ddprun::rdzv {

namespace {

Limits small_limits() {
    Limits limits;
    limits.store_key_bytes_max = 8;
    limits.store_value_bytes_max = 64;
    limits.store_keys_per_request_max = 16;
    limits.store_request_bytes_max = 256;
    limits.store_reply_bytes_max = 256;
    return limits;
}

// ---------------------------------------------------------------------------------------- bytes

struct Requests {
    std::vector<std::string> whole;
    std::optional<ErrorCode> failed;

    bool operator==(const Requests&) const = default;
};

/// As a session does: what is not yet a request is kept and offered again with what follows.
Requests split(std::string_view stream, std::string_view sizes, const Limits& limits) {
    RequestSplitter splitter(limits, RequestSplitter::Relays::Taken);
    Requests requests;
    std::string kept;
    while (!stream.empty() && !requests.failed) {
        std::size_t size = stream.size();
        if (!sizes.empty()) {
            size = std::min<std::size_t>(size, static_cast<unsigned char>(sizes.front()) % 32);
            sizes.remove_prefix(1);
        }
        kept.append(stream.substr(0, size));
        stream.remove_prefix(size);
        while (true) {
            // A copy of its own, so that the address sanitizer sees a look behind the end.
            const std::vector<char> bytes(kept.begin(), kept.end());
            const Result<std::size_t> length = splitter.split({bytes.data(), bytes.size()});
            if (!length) {
                requests.failed = length.error().code;
                break;
            }
            DDP_CHECK(*length <= kept.size(), *length, kept.size());
            if (*length == 0) {
                DDP_CHECK(kept.size() <= limits.store_request_bytes_max + 64, kept.size());
                break;
            }
            requests.whole.push_back(kept.substr(0, *length));
            kept.erase(0, *length);
        }
    }
    return requests;
}

void check_bytes(fuzz::Choices& choices) {
    const Limits limits = small_limits();
    const std::string_view sizes = choices.bytes(choices.below(16));
    const unsigned opening = choices.below(4);
    const bool is_relay = opening == 3;
    std::string stream = opening % 2 == 1 ? store_test::validate() : std::string();
    if (is_relay) {
        stream += store_test::opcode(StoreOpcode::Relay) + store_test::nonce(kRelayVersion);
    }
    stream.append(choices.rest());
    const Requests whole = split(stream, {}, limits);
    DDP_CHECK(whole == split(stream, sizes, limits), whole.whole.size());
    if (is_relay) {
        return;  // Its requests begin with lists of clients, which the core does not know.
    }
    StoreCore core(limits);
    StoreReplies replies;
    for (const std::string& request : whole.whole) {
        const std::vector<char> bytes(request.begin(), request.end());
        if (!core.handle(StoreClient(0), {bytes.data(), bytes.size()}, replies)) {
            break;
        }
    }
    std::size_t size = 0;
    for (const StoreReplies::Piece& piece : replies.pieces()) {
        DDP_CHECK(piece.client == StoreClient(0), piece.client.value());
        size += piece.size;
    }
    DDP_CHECK(size == replies.bytes().size(), size, replies.bytes().size());
}

// ------------------------------------------------------------------------------------- requests

using Sent = fuzz::StoreModel::Sent;

Sent by_client(const StoreReplies& replies) {
    Sent sent;
    std::size_t begin = 0;
    for (const StoreReplies::Piece& piece : replies.pieces()) {
        sent[piece.client.value()] += replies.bytes().substr(begin, piece.size);
        sent[piece.client.value()] += piece.shared.bytes;
        begin += piece.size;
    }
    return sent;
}

void check_requests(fuzz::Choices& choices) {
    const Limits limits = small_limits();
    StoreCore core(limits);
    fuzz::StoreModel model(limits);
    while (!choices.is_empty()) {
        const std::uint32_t client = choices.below(4);
        const fuzz::StoreRequest request = fuzz::choose_request(choices);
        StoreReplies replies;
        if (request.is_end) {
            core.disconnected(StoreClient(client), replies);
            model.disconnected(client);
        } else {
            const bool is_done =
                core.handle(StoreClient(client), request.bytes, replies).has_value();
            DDP_CHECK(is_done == model.handle(client, request), request.bytes.size());
        }
        model.check_sent(by_client(replies));
        DDP_CHECK(core.key_count() == model.key_count(), core.key_count(), model.key_count());
        DDP_CHECK(core.queue_count() == model.queue_count(), core.queue_count());
        DDP_CHECK(core.waiter_count() == model.waiter_count(), core.waiter_count(),
                  model.waiter_count());
    }
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
