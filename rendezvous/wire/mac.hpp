#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <span>
#include <string_view>

namespace ddprun::rdzv {

/// A whole HMAC-SHA256, or the key of one direction of a connection.
using Mac = std::array<unsigned char, 32>;

/// HMAC-SHA256 under one key, for many messages. Moved, not copied.
class MacKey {
public:
    explicit MacKey(std::span<const unsigned char, 32> key);

    /// Over the concatenation of `parts`.
    [[nodiscard]] Mac of(std::initializer_list<std::string_view> parts);

private:
    struct Free {
        void operator()(void* context) const;
    };
    std::unique_ptr<void, Free> context_;  ///< OpenSSL's EVP_MAC_CTX
};

[[nodiscard]] Mac sha256(std::string_view bytes);

/// Takes the same time wherever the two differ. Different lengths are simply unequal.
[[nodiscard]] bool equal_in_constant_time(std::string_view left, std::string_view right);

[[nodiscard]] inline std::string_view view(const Mac& mac) {
    // The bytes of an array of unsigned char may be read as char.
    return {reinterpret_cast<const char*>(mac.data()), mac.size()};
}

}  // namespace ddprun::rdzv
