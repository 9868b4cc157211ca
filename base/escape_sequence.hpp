#pragma once

#include <cstddef>
#include <string_view>

namespace ddprun {

/// The length in bytes of the terminal's escape sequence (ECMA-48: colours, cursor, titles, links)
/// that `text`, whose first byte is ESC, begins with; 0: it is not whole yet. Pure.
[[nodiscard]] std::size_t escape_length(std::string_view text);

}  // namespace ddprun
