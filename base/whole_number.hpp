#pragma once

#include <charconv>
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

}  // namespace ddprun
