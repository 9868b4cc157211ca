#include "agent/memory/peer_messages.hpp"

#include <utility>

#include "rendezvous/wire/fixed_frames.hpp"

namespace ddprun::agent {

namespace {

using worker::MemoryRequest;
using worker::MemoryVerb;

constexpr std::size_t kNumberBytes = 8;

std::string begin_body(char kind, std::initializer_list<std::uint64_t> numbers) {
    std::string body(1, kind);
    for (const std::uint64_t number : numbers) {
        rdzv::append_number(body, number, kNumberBytes);
    }
    return body;
}

Error no_message() {
    return {ErrorCode::BadMessage, "it sends what no ddprun-memory sends"};
}

std::uint64_t number_at(std::string_view body, std::size_t index) {
    return rdzv::read_number(body.substr(1 + index * kNumberBytes, kNumberBytes));
}

/// The request behind `numbers` numbers.
Result<MemoryRequest> request_in(std::string_view body, std::size_t numbers, MemoryVerb verb) {
    const std::size_t at = 1 + numbers * kNumberBytes;
    if (body.size() < at) {
        return no_message();
    }
    Result<MemoryRequest> request = worker::decode_memory_request(body.substr(at));
    if (!request || request->verb != verb || request->files.empty()) {
        return no_message();
    }
    return request;
}

}  // namespace

std::string encode(const PeerOffer& offer) {
    MemoryRequest request;
    request.verb = MemoryVerb::Written;
    request.rank = offer.rank.value();
    request.key = offer.key;
    request.files = offer.files;
    return begin_body('O', {offer.number}) + worker::encode(request);
}

std::string encode(const PeerDone& done) {
    return begin_body('D', {done.number}) + done.fault;
}

std::string encode(const PeerGet& get) {
    MemoryRequest request;
    request.verb = MemoryVerb::Open;
    request.key = get.key;
    request.files = {{.name = get.name, .size = 0, .xxh3_128 = {}}};
    return begin_body('G', {get.offset, get.bytes}) + worker::encode(request);
}

std::string encode(const PeerMissing& missing) {
    return "M" + missing.why;
}

Result<PeerMessage> decode_peer_message(std::string_view body) {
    const char kind = body.empty() ? '\0' : body.front();
    if (kind == 'P') {
        return PeerMessage(PeerPiece{body.substr(1)});
    }
    if (kind == 'M') {
        return PeerMessage(PeerMissing{std::string(body.substr(1))});
    }
    if (kind == 'D' && body.size() >= 1 + kNumberBytes) {
        return PeerMessage(PeerDone{.number = number_at(body, 0),
                                    .fault = std::string(body.substr(1 + kNumberBytes))});
    }
    if (kind == 'O') {
        Result<MemoryRequest> request = request_in(body, 1, MemoryVerb::Written);
        if (!request) {
            return request.error();
        }
        for (const worker::MemoryFile& file : request->files) {
            if (file.xxh3_128.empty()) {
                return no_message();
            }
        }
        return PeerMessage(PeerOffer{.number = number_at(body, 0),
                                     .rank = Rank(request->rank),
                                     .key = request->key,
                                     .files = std::move(request->files)});
    }
    if (kind == 'G') {
        const Result<MemoryRequest> request = request_in(body, 2, MemoryVerb::Open);
        if (!request) {
            return request.error();
        }
        return PeerMessage(PeerGet{.key = request->key,
                                   .name = request->files.front().name,
                                   .offset = number_at(body, 0),
                                   .bytes = number_at(body, 1)});
    }
    return no_message();
}

}  // namespace ddprun::agent
