#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ddprun {

/// Bytes of the well-formed UTF-8 character that `text` begins with; 0 if it begins with none.
[[nodiscard]] std::size_t utf8_length(std::string_view text);

/// Nothing but well-formed characters; also for an empty text.
[[nodiscard]] bool is_utf8(std::string_view text);

/// `text`; above `bytes_max`, which is at least 3, as much of its beginning as fits with a `…`
/// behind it. No character is cut in half.
[[nodiscard]] std::string utf8_cut(std::string_view text, std::size_t bytes_max);

}  // namespace ddprun
