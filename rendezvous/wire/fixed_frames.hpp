#pragma once

#include <cstddef>

/// The bodies that are no JSON: a kind and a u64 sequence number, big-endian.
namespace ddprun::rdzv {

inline constexpr char kBeatByte = 1;
inline constexpr char kAcknowledgeByte = 2;
inline constexpr std::size_t kBeatBytes = 9;

}  // namespace ddprun::rdzv
