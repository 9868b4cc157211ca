#include "agent/core/printable.hpp"

#include <cstdint>

#include <fmt/format.h>

namespace ddprun::agent {

namespace {

unsigned byte_at(std::string_view text, std::size_t at) {
    return static_cast<unsigned char>(text[at]);
}

/// The length of the well-formed character that `text` begins with; 0 if it is none.
std::size_t character_length(std::string_view text) {
    const unsigned first = byte_at(text, 0);
    if (first < 0x80) {
        return 1;
    }
    const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (first < 0xc2 || first > 0xf4 || text.size() < length) {
        return 0;
    }
    for (std::size_t i = 1; i < length; ++i) {
        if ((byte_at(text, i) & 0xc0U) != 0x80) {
            return 0;
        }
    }
    // Overlong forms, surrogates and what lies beyond the last code point; C1 controls.
    const unsigned second = byte_at(text, 1);
    const bool is_bad = (first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
                        (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f) ||
                        (first == 0xc2 && second < 0xa0);
    return is_bad ? 0 : length;
}

std::string escaped(unsigned byte) {
    switch (byte) {
        case '\n':
            return "\\n";
        case '\r':
            return "\\r";
        case '\t':
            return "\\t";
        default:
            return fmt::format("\\x{:02x}", byte);
    }
}

}  // namespace

std::string printable(std::string_view bytes, std::size_t columns_max) {
    std::string result;
    std::size_t columns = 0;
    std::size_t cut_at = 0;  // where the result must end if one column is needed for the `…`
    while (!bytes.empty()) {
        const std::size_t length = character_length(bytes);
        const unsigned first = byte_at(bytes, 0);
        const bool is_shown = length > 0 && first >= 0x20 && first != 0x7f;
        const std::string piece = is_shown ? std::string(bytes.substr(0, length)) : escaped(first);
        const std::size_t width = is_shown ? 1 : piece.size();
        if (columns + width > columns_max) {
            result.resize(cut_at);
            return result + "…";
        }
        result += piece;
        columns += width;
        if (columns < columns_max) {
            cut_at = result.size();
        }
        bytes.remove_prefix(is_shown ? length : 1);
    }
    return result;
}

}  // namespace ddprun::agent
