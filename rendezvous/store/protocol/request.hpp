#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/limits.hpp"
#include "base/result.hpp"

namespace ddprun::rdzv {

/// First byte of a request. The numbers are the TCPStore protocol's; the last three are ddprun's
/// own, between a relay and a store.
enum class StoreOpcode : std::uint8_t {
    Validate = 0,
    Set,
    CompareSet,
    Get,
    Add,
    Check,
    Wait,
    GetNumKeys,
    DeleteKey,
    Append,
    MultiGet,
    MultiSet,
    CancelWait,
    Ping,
    QueuePush,
    QueuePop,
    QueueLen,
    ListKeys,
    Barrier,
    Relay = 0xf0,  ///< this connection is a relay's
    Enter,         ///< clients of a relay have come
    Leave,         ///< and are gone
};

/// The number in RELAY: the version of the protocol that follows it.
inline constexpr std::uint32_t kRelayVersion = 1;

inline constexpr std::uint32_t kStoreMagic = 0x3C85F7CE;

/// Clients that one frame between relay and store names: as many as a node may have workers.
[[nodiscard]] inline std::size_t frame_clients_max(const Limits& limits) {
    return static_cast<std::size_t>(limits.slots_max);
}

/// "GET" for StoreOpcode::Get; for messages to people.
[[nodiscard]] std::string_view name_of(StoreOpcode opcode);

/// Whether a request of it may make the store larger.
[[nodiscard]] bool may_grow_store(StoreOpcode opcode);

/// Finds where the requests of one connection end. It remembers how far it has looked, so bytes may
/// arrive in any segmentation and none is examined twice. A length is checked against Limits as
/// soon as it has arrived, before what it announces. The first request must be VALIDATE with the
/// right magic; a later VALIDATE is refused. After RELAY every request begins with the list of the
/// clients that send it.
class RequestSplitter {
public:
    /// Whether RELAY is an operation at all. It may only follow VALIDATE at once.
    enum class Relays { Refused, Taken };

    /// `limits` outlives the splitter.
    explicit RequestSplitter(const Limits& limits, Relays relays = Relays::Refused)
        : limits_(&limits), may_become_relay_(relays == Relays::Taken) {}

    /// `bytes` begins with the first byte of a request and with everything given since the last
    /// complete one. Success is the length of that request, or 0 when more bytes are needed. After
    /// a failure, whose text is for people, the connection is of no use.
    [[nodiscard]] Result<std::size_t> split(std::string_view bytes);

    /// VALIDATE has been seen.
    [[nodiscard]] bool is_open() const { return is_open_; }

    /// RELAY has been seen.
    [[nodiscard]] bool is_relay() const { return is_relay_; }

    /// After split() has returned 0: how long the request is at least, by the lengths seen so far.
    [[nodiscard]] std::size_t announced() const { return announced_; }

private:
    [[nodiscard]] Result<bool> begin(std::string_view bytes);
    [[nodiscard]] Result<bool> advance(std::string_view bytes);
    [[nodiscard]] Result<bool> skip_clients(std::string_view bytes);
    [[nodiscard]] Result<bool> skip_string(std::string_view bytes, std::size_t length_max);
    [[nodiscard]] Result<bool> skip_count(std::string_view bytes);

    const Limits* limits_;
    const char* field_ = nullptr;     ///< next field of the layout; null before a request
    const char* repeated_ = nullptr;  ///< the fields that are repeated
    std::size_t position_ = 0;        ///< where the next field begins
    std::size_t announced_ = 0;
    std::uint64_t repeats_ = 0;  ///< repetitions still to come after the current one
    StoreOpcode opcode_ = StoreOpcode::Validate;
    bool is_open_ = false;
    bool is_relay_ = false;
    bool may_become_relay_;
};

/// Reads the fields of one complete request, in order. Reading past its end is a bug of the caller,
/// because RequestSplitter has checked the lengths.
class FieldReader {
public:
    explicit FieldReader(std::string_view fields) : rest_(fields) {}

    std::uint32_t u32();
    std::uint64_t u64();
    std::int64_t i64();
    /// A key or a value; it points into the request.
    std::string_view text();
    /// Everything that was not read.
    [[nodiscard]] std::string_view rest() const { return rest_; }

private:
    std::string_view take(std::size_t size);

    std::string_view rest_;
};

void append_u8(std::string& out, std::uint8_t value);
void append_u32(std::string& out, std::uint32_t value);
void append_i64(std::string& out, std::int64_t value);
/// Length, then bytes: how a key or a value travels.
void append_text(std::string& out, std::string_view text);

}  // namespace ddprun::rdzv
