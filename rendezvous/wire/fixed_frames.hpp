#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

/// The bodies that are no JSON: a kind and a u64 sequence number, big-endian.
namespace ddprun::rdzv {

inline constexpr char kBeatByte = 1;
inline constexpr char kAcknowledgeByte = 2;
inline constexpr std::size_t kBeatBytes = 9;

/// Numbers travel with their highest byte first.
inline void append_number(std::string& out, std::uint64_t value, std::size_t bytes) {
    for (std::size_t left = bytes; left > 0; --left) {
        out += static_cast<char>(value >> 8 * (left - 1) & 0xff);
    }
}

[[nodiscard]] inline std::uint64_t read_number(std::string_view bytes) {
    std::uint64_t value = 0;
    for (const char byte : bytes) {
        value = value << 8 | static_cast<unsigned char>(byte);
    }
    return value;
}

}  // namespace ddprun::rdzv
