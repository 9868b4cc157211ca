// Goal: what a worker or another node sends to ddprun-memory is one message within its bounds, or
// an error. Method: bytes are decoded as each kind of message; what is accepted is encoded and
// decoded again.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "agent/memory/peer_messages.hpp"
#include "agent/memory/program_settings.hpp"
#include "base/check.hpp"
#include "worker_runtime/memory/protocol.hpp"

namespace ddprun {

namespace {

void check_files(const std::vector<worker::MemoryFile>& files) {
    for (const worker::MemoryFile& file : files) {
        DDP_CHECK(worker::is_memory_file_name(file.name), file.name.size());
    }
}

void check_request(std::string_view text) {
    const Result<worker::MemoryRequest> request = worker::decode_memory_request(text);
    if (request) {
        check_files(request->files);
        DDP_CHECK(request->key.step >= 0 && request->rank >= 0, request->key.step, request->rank);
        const auto again = worker::decode_memory_request(encode(*request));
        DDP_CHECK(again.has_value() && again->files == request->files &&
                      again->endpoint == request->endpoint,
                  text.size());
    }
    const Result<worker::MemoryReply> reply = worker::decode_memory_reply(text);
    if (reply) {
        DDP_CHECK(worker::decode_memory_reply(encode(*reply)).has_value(), text.size());
    }
}

void check_peer(std::string_view body) {
    const Result<agent::PeerMessage> message = agent::decode_peer_message(body);
    if (!message) {
        return;
    }
    if (const auto* offer = std::get_if<agent::PeerOffer>(&*message)) {
        check_files(offer->files);
        DDP_CHECK(agent::decode_peer_message(encode(*offer)).has_value(), body.size());
    } else if (const auto* get = std::get_if<agent::PeerGet>(&*message)) {
        DDP_CHECK(agent::decode_peer_message(encode(*get)).has_value(), body.size());
    }
}

}  // namespace

}  // namespace ddprun

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string text(reinterpret_cast<const char*>(data), size);
    ddprun::check_request(text);
    ddprun::check_peer(text);
    (void)ddprun::agent::decode_settings(text);
    return 0;
}
