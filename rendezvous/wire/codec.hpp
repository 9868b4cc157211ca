#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/limits.hpp"
#include "base/result.hpp"
#include "rendezvous/wire/messages.hpp"

/// Messages as the bodies of frames. A body is a JSON object with the field "type" and those of
/// message_fields.hpp; a beat and its acknowledgement are 9 bytes: 0x01 or 0x02, and the sequence
/// number, big-endian. Pure.
namespace ddprun::rdzv {

/// Never fails: bytes that are not UTF-8 are replaced in texts; fields for any bytes are base64.
[[nodiscard]] std::string encode(const AgentMessage& message);
[[nodiscard]] std::string encode(const RendezvousMessage& message);

/// Encodes what one sender says to many: a message that goes to one after the other is encoded
/// once.
class RepeatEncoder {
public:
    /// As encode(). Valid until the next call.
    [[nodiscard]] std::string_view body_of(const RendezvousMessage& message);

private:
    std::optional<RendezvousMessage> last_;
    std::string body_;
};

/// Reads what anybody may have sent. Unknown fields are ignored, missing ones keep their defaults.
/// Failure is BadMessage and names the message and the field.
[[nodiscard]] Result<AgentMessage> decode_agent_message(std::string_view body,
                                                        const Limits& limits);
[[nodiscard]] Result<RendezvousMessage> decode_rendezvous_message(std::string_view body,
                                                                  const Limits& limits);

/// Decodes a message that belongs to neither of the two; its body has only it. Failure as above.
template <typename T>
[[nodiscard]] Result<T> decode(std::string_view body, const Limits& limits);

}  // namespace ddprun::rdzv
