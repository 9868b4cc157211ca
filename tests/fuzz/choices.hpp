#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ddprun::fuzz {

/// Makes decisions out of a fuzz input, byte by byte from its front. When it is used up every
/// decision is the first one, so loops ask is_empty(). Not copied; the input outlives it.
class Choices {
public:
    Choices(const std::uint8_t* data, std::size_t size)
        : rest_(reinterpret_cast<const char*>(data), size) {}
    Choices(const Choices&) = delete;
    Choices& operator=(const Choices&) = delete;

    [[nodiscard]] bool is_empty() const { return rest_.empty(); }

    std::uint8_t byte() {
        if (rest_.empty()) {
            return 0;
        }
        const auto value = static_cast<std::uint8_t>(rest_.front());
        rest_.remove_prefix(1);
        return value;
    }

    /// In [0, bound); `bound` from 1 to 256.
    unsigned below(unsigned bound) { return byte() % bound; }
    bool flag() { return below(2) == 1; }

    /// Two bytes, the first one the lower.
    unsigned word() {
        const unsigned low = byte();
        return low | static_cast<unsigned>(byte()) << 8;
    }

    /// The next bytes, at most `most`.
    std::string_view bytes(std::size_t most) {
        const std::string_view taken = rest_.substr(0, std::min(most, rest_.size()));
        rest_.remove_prefix(taken.size());
        return taken;
    }
    std::string_view rest() { return bytes(rest_.size()); }

    /// Up to the next `separator`, which is passed over, or the end.
    std::string_view up_to(char separator) {
        const std::string_view taken = rest_.substr(0, rest_.find(separator));
        rest_.remove_prefix(std::min(taken.size() + 1, rest_.size()));
        return taken;
    }

private:
    std::string_view rest_;
};

}  // namespace ddprun::fuzz
