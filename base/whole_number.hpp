#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <optional>
#include <string_view>
#include <system_error>

namespace ddprun {

/// The number that `text` is, all of it and in decimal; none if it is not, or is out of range.
template <typename Number>
[[nodiscard]] std::optional<Number> whole_number(std::string_view text) {
    Number number{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    const bool is_whole = error == std::errc{} && end == text.data() + text.size();
    return is_whole ? std::optional<Number>(number) : std::nullopt;
}

/// The decimal number behind the first `key` in `text` and blanks, whatever follows it; none if
/// there is no such number, or it is out of range.
template <typename Number>
[[nodiscard]] std::optional<Number> number_after(std::string_view text, std::string_view key) {
    const std::size_t place = text.find(key);
    if (place == std::string_view::npos) {
        return std::nullopt;
    }
    text.remove_prefix(place + key.size());
    text.remove_prefix(std::min(text.size(), text.find_first_not_of(" \t")));
    Number number{};
    const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
    return read.ec == std::errc{} ? std::optional(number) : std::nullopt;
}

}  // namespace ddprun
