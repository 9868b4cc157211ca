#include "base/escape_sequence.hpp"

#include <algorithm>

namespace ddprun {

std::size_t escape_length(std::string_view text) {
    if (text.size() < 2) {
        return 0;
    }
    if (text[1] == '[') {  // CSI: parameters, then a letter
        const auto end = std::find_if(text.begin() + 2, text.end(),
                                      [](char byte) { return byte >= '@' && byte <= '~'; });
        return end == text.end() ? 0 : static_cast<std::size_t>(end - text.begin()) + 1;
    }
    if (text[1] == ']') {  // OSC (titles, links): until BEL, or ESC and a backslash
        const std::size_t bell = text.find('\a', 2);
        const std::size_t end = text.find("\x1b\\", 2);
        if (bell < end) {
            return bell + 1;
        }
        return end == std::string_view::npos ? 0 : end + 2;
    }
    const bool has_argument =
        std::string_view("()*+-./#% ").find(text[1]) != std::string_view::npos;
    return !has_argument ? 2 : text.size() < 3 ? 0 : 3;
}

}  // namespace ddprun
