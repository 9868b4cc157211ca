#include "worker_runtime/checkpoint/hashing.hpp"

#include <fmt/format.h>

#include "base/check.hpp"

namespace ddprun::worker {

namespace {

std::string hex_of(XXH128_hash_t hash) {
    return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace

std::string xxh3_128_hex(std::string_view bytes) {
    return hex_of(XXH3_128bits(bytes.data(), bytes.size()));
}

Xxh3Hasher::Xxh3Hasher() : state_(XXH3_createState()) {
    DDP_CHECK(state_ != nullptr);
    XXH3_128bits_reset(state_.get());
}

void Xxh3Hasher::add(std::span<const std::byte> bytes) {
    if (!bytes.empty()) {
        XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
    }
}

std::string Xxh3Hasher::hex() const {
    return hex_of(XXH3_128bits_digest(state_.get()));
}

}  // namespace ddprun::worker
