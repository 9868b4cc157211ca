#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/store/core/relayed_clients.hpp"
#include "rendezvous/store/protocol/request.hpp"

/// The bytes of store requests and replies, for tests.
namespace ddprun::rdzv::store_test {

inline std::string text(std::string_view bytes) {
    std::string out;
    append_text(out, bytes);
    return out;
}

inline std::string number(std::int64_t value) {
    std::string out;
    append_i64(out, value);
    return out;
}

inline std::string byte(std::uint8_t value) {
    return std::string(1, static_cast<char>(value));
}

inline std::string opcode(StoreOpcode code) {
    return byte(static_cast<std::uint8_t>(code));
}

inline std::string validate(std::uint32_t magic = kStoreMagic) {
    std::string out = opcode(StoreOpcode::Validate);
    append_u32(out, magic);
    return out;
}

inline std::string nonce(std::uint32_t value) {
    std::string out;
    append_u32(out, value);
    return out;
}

inline std::string ping(std::uint32_t value) {
    return opcode(StoreOpcode::Ping) + nonce(value);
}

/// A request of one key: GET, DELETE_KEY, QUEUE_POP, QUEUE_LEN.
inline std::string of_key(StoreOpcode code, std::string_view key) {
    return opcode(code) + text(key);
}

/// A request of a key and a value: SET, APPEND, QUEUE_PUSH.
inline std::string of_value(StoreOpcode code, std::string_view key, std::string_view value) {
    return opcode(code) + text(key) + text(value);
}

/// A request of a key and a number: ADD, BARRIER.
inline std::string of_number(StoreOpcode code, std::string_view key, std::int64_t value) {
    return opcode(code) + text(key) + number(value);
}

/// A request of many keys: CHECK, WAIT, MULTI_GET.
inline std::string of_keys(StoreOpcode code, std::initializer_list<std::string_view> keys) {
    std::string out = opcode(code) + number(static_cast<std::int64_t>(keys.size()));
    for (const std::string_view key : keys) {
        out += text(key);
    }
    return out;
}

inline std::string set(std::string_view key, std::string_view value) {
    return of_value(StoreOpcode::Set, key, value);
}

inline std::string get(std::string_view key) {
    return of_key(StoreOpcode::Get, key);
}

inline std::string wait(std::initializer_list<std::string_view> keys) {
    return of_keys(StoreOpcode::Wait, keys);
}

inline std::string compare_set(std::string_view key, std::string_view expected,
                               std::string_view desired) {
    return opcode(StoreOpcode::CompareSet) + text(key) + text(expected) + text(desired);
}

inline std::string multi_set(
    std::initializer_list<std::pair<std::string_view, std::string_view>> pairs) {
    std::string out =
        opcode(StoreOpcode::MultiSet) + number(static_cast<std::int64_t>(pairs.size()));
    for (const auto& [key, value] : pairs) {
        out += text(key) + text(value);
    }
    return out;
}

inline const std::string kStopWaiting = byte(0);
inline const std::string kWaitCanceled = byte(1);
inline const std::string kReady = byte(0);
inline const std::string kNotReady = byte(1);

/// The list of clients of a relay's frame.
inline std::string clients(const std::vector<std::uint32_t>& numbers) {
    std::string out;
    append_clients(out, numbers);
    return out;
}

/// A frame of replies for a relay.
inline std::string replied(const std::vector<std::uint32_t>& numbers, const std::string& reply) {
    return clients(numbers) + number(static_cast<std::int64_t>(reply.size())) + reply;
}

}  // namespace ddprun::rdzv::store_test
