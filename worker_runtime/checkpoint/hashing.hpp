#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

/// XXH3-128, in the 32 hexadecimal digits that `xxhsum -H2` prints.
namespace ddprun::worker {

constexpr std::size_t kXxh3HexDigits = 32;

[[nodiscard]] std::string xxh3_128_hex(std::string_view bytes);

/// The checksum of bytes that come in pieces.
class Xxh3Hasher {
public:
    Xxh3Hasher();
    ~Xxh3Hasher();

    void add(std::span<const std::byte> bytes);
    [[nodiscard]] std::string hex() const;

private:
    struct State;

    std::unique_ptr<State> state_;
};

}  // namespace ddprun::worker
