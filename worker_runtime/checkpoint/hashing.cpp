#include "worker_runtime/checkpoint/hashing.hpp"

#include <fmt/format.h>

// Compiled in: what links us need not have the library.
#define XXH_INLINE_ALL
// Bytes that are fetched ahead. The processor itself fetches no further than to the end of a page;
// with the library's 384 bytes the checksum of bytes in memory takes 40 % longer.
#define XXH_PREFETCH_DIST 2048
#include <xxhash.h>

namespace ddprun::worker {

namespace {

std::string hex_of(XXH128_hash_t hash) {
    return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace

std::string xxh3_128_hex(std::string_view bytes) {
    return hex_of(XXH3_128bits(bytes.data(), bytes.size()));
}

struct Xxh3Hasher::State {
    XXH3_state_t xxh3;
};

Xxh3Hasher::Xxh3Hasher() : state_(std::make_unique<State>()) {
    XXH3_128bits_reset(&state_->xxh3);
}

Xxh3Hasher::~Xxh3Hasher() = default;

void Xxh3Hasher::add(std::span<const std::byte> bytes) {
    if (!bytes.empty()) {
        XXH3_128bits_update(&state_->xxh3, bytes.data(), bytes.size());
    }
}

std::string Xxh3Hasher::hex() const {
    return hex_of(XXH3_128bits_digest(&state_->xxh3));
}

}  // namespace ddprun::worker
