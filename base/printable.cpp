#include "base/printable.hpp"

#include <fmt/format.h>

#include "base/utf8.hpp"

namespace ddprun {

namespace {

bool is_control(std::string_view character) {
    const auto first = static_cast<unsigned char>(character.front());
    const bool is_c1 =
        character.size() == 2 && first == 0xc2 && static_cast<unsigned char>(character[1]) < 0xa0;
    return first < 0x20 || first == 0x7f || is_c1;
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
        const std::size_t length = utf8_length(bytes);
        const bool is_shown = length > 0 && !is_control(bytes.substr(0, length));
        const std::string piece = is_shown ? std::string(bytes.substr(0, length))
                                           : escaped(static_cast<unsigned char>(bytes.front()));
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

}  // namespace ddprun
