// Goal: what the keeper and its agent accept is exactly one message, and it travels unchanged.
// Method: bytes are decoded as both kinds of message; what is accepted is encoded and decoded
// again, and must be refused when a byte is missing or left over.
#include <cstring>
#include <string>
#include <string_view>

#include "agent/process/keeper_protocol.hpp"
#include "base/check.hpp"
#include "tests/fuzz/choices.hpp"

namespace ddprun::agent {

namespace {

template <typename Message>
void check_accepted(const Message& message, std::string_view body,
                    Result<Message> (*decode)(std::string_view)) {
    const Result<std::string> frame = encode_frame(message);
    DDP_CHECK(frame.has_value(), body.size());
    std::uint32_t length = 0;
    std::memcpy(&length, frame->data(), sizeof length);
    DDP_CHECK(frame->size() == sizeof length + length, frame->size(), length);
    // One build on both ends: there is one way to write a message, but for a flag that is not 0.
    DDP_CHECK(length == body.size(), length, body.size());
    const Result<Message> again = decode(std::string_view(*frame).substr(sizeof length));
    DDP_CHECK(again.has_value() && *again == message, body.size());
    for (std::size_t size = 0; size < body.size(); ++size) {
        // A copy of its own, so that the address sanitizer sees a look behind the end.
        const std::string shorter(body.substr(0, size));
        DDP_CHECK(!decode(shorter).has_value(), size, body.size());
    }
    DDP_CHECK(!decode(std::string(body) + '\0').has_value(), body.size());
}

void check_end(const KeeperEvent& event) {
    if (const auto* exited = std::get_if<KeeperExited>(&event)) {
        const WorkerEnd& end = exited->end;
        const int ways = (end.exit_code ? 1 : 0) + (end.signal ? 1 : 0) + (end.exec_errno ? 1 : 0);
        DDP_CHECK(ways == 1, ways);
    }
}

void run(std::string_view body) {
    if (const Result<KeeperRequest> request = decode_request(body)) {
        const auto* const spawn = std::get_if<KeeperSpawn>(&*request);
        DDP_CHECK(spawn == nullptr || !spawn->command.empty(), body.size());
        check_accepted(*request, body, &decode_request);
    }
    if (const Result<KeeperEvent> event = decode_event(body)) {
        check_end(*event);
        check_accepted(*event, body, &decode_event);
    }
}

}  // namespace

}  // namespace ddprun::agent

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    ddprun::fuzz::Choices choices(data, size);
    ddprun::agent::run(choices.rest());
    return 0;
}
