#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>

#include "base/result.hpp"

namespace ddprun::rdzv {

/// Bytes that do not change, and what keeps them alive: any number of holders, one copy.
struct SharedText {
    std::shared_ptr<const void> owner;
    std::string_view bytes;
};

/// From this size on values are handed on by reference: a value that ten thousand clients get at
/// the same time is in memory once.
inline constexpr std::size_t kSharedValueBytesMin = 65536;

/// The value of a key or of a place in a queue.
class StoreValue {
public:
    StoreValue() = default;
    explicit StoreValue(std::string_view bytes) : bytes_(std::string(bytes)) {}

    [[nodiscard]] std::string_view view() const;

    /// Copies `bytes`.
    void assign(std::string_view bytes);
    /// Takes `bytes`, which lie in memory that `owner` keeps alive; copies them if they are few.
    void assign(std::string_view bytes, const std::shared_ptr<const void>& owner);
    void append(std::string_view bytes);

    /// The bytes as they are now, without copying them.
    [[nodiscard]] SharedText share();

private:
    std::variant<std::string, SharedText> bytes_;
};

/// The number that a counter's text stands for: blanks, a sign and digits, then anything. Failure
/// when there are no digits or the number does not fit.
[[nodiscard]] Result<std::int64_t> counter_value(std::string_view text);

/// Lets maps keyed by std::string be searched with a view, without making a string.
struct TextHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
        return std::hash<std::string_view>{}(text);
    }
};

template <typename Value>
using TextMap = std::unordered_map<std::string, Value, TextHash, std::equal_to<>>;

}  // namespace ddprun::rdzv
