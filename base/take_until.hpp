#pragma once

#include <algorithm>
#include <string_view>

namespace ddprun {

/// The part of `text` before the first `end`, or all of it. `text` loses that part and the `end`.
[[nodiscard]] inline std::string_view take_until(std::string_view& text, char end) {
    const std::string_view word = text.substr(0, text.find(end));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    return word;
}

}  // namespace ddprun
