#include "agent/output/text_width.hpp"

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/escape_sequence.hpp"

namespace ddprun::agent {

namespace {

constexpr char kEscape = '\x1b';
constexpr std::size_t kTab = 8;

struct Range {
    std::uint32_t first;
    std::uint32_t last;
};

/// Combining marks, joiners and variation selectors.
constexpr std::array kNoColumn{Range{0x300, 0x36F}, Range{0x200B, 0x200F}, Range{0x20D0, 0x20FF},
                               Range{0xFE00, 0xFE0F}, Range{0xFE20, 0xFE2F}};
/// East Asian wide and full-width characters, and emoji.
constexpr std::array kTwoColumns{
    Range{0x1100, 0x115F},   Range{0x2E80, 0x303E},   Range{0x3041, 0xA4CF},
    Range{0xAC00, 0xD7A3},   Range{0xF900, 0xFAFF},   Range{0xFE30, 0xFE6F},
    Range{0xFF00, 0xFF60},   Range{0xFFE0, 0xFFE6},   Range{0x1F300, 0x1F64F},
    Range{0x1F680, 0x1F6FF}, Range{0x1F900, 0x1F9FF}, Range{0x20000, 0x3FFFD}};

template <std::size_t kSize>
bool is_in(const std::array<Range, kSize>& ranges, std::uint32_t character) {
    return std::any_of(ranges.begin(), ranges.end(), [character](const Range& range) {
        return range.first <= character && character <= range.last;
    });
}

/// One character or one escape sequence.
struct Piece {
    std::size_t bytes = 1;
    std::size_t columns = 1;
    bool is_escape = false;
};

Piece first_piece(std::string_view text, std::size_t column) {
    if (text.front() == kEscape) {
        const std::size_t length = escape_length(text);
        return {.bytes = length == 0 ? text.size() : length, .columns = 0, .is_escape = true};
    }
    if (text.front() == '\t') {
        return {.bytes = 1, .columns = kTab - column % kTab};
    }
    const auto lead = static_cast<unsigned char>(text.front());
    const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    if (length == 1 || text.size() < length) {
        return {.bytes = 1, .columns = lead < 0x20 || lead == 0x7F ? 0U : 1U};
    }
    std::uint32_t character = lead & (0xFFU >> (length + 1));
    for (std::size_t i = 1; i < length; ++i) {
        const auto next = static_cast<unsigned char>(text[i]);
        if ((next & 0xC0U) != 0x80U) {
            return {};
        }
        character = character << 6U | (next & 0x3FU);
    }
    const std::size_t columns = is_in(kNoColumn, character)     ? 0
                                : is_in(kTwoColumns, character) ? 2
                                                                : 1;
    return {.bytes = length, .columns = columns};
}

}  // namespace

std::size_t width_of(std::string_view text) {
    std::size_t columns = 0;
    while (!text.empty()) {
        const Piece piece = first_piece(text, columns);
        columns += piece.columns;
        text.remove_prefix(piece.bytes);
    }
    return columns;
}

std::string fit_columns(std::string_view text, std::size_t columns) {
    std::string fitting;
    std::size_t used = 0;
    bool is_full = false;
    while (!text.empty()) {
        const Piece piece = first_piece(text, used);
        const bool is_kept = piece.is_escape || (!is_full && used + piece.columns <= columns);
        is_full = is_full || !is_kept;
        if (is_kept && text.front() == '\t') {
            fitting.append(piece.columns, ' ');
        } else if (is_kept) {
            fitting.append(text.substr(0, piece.bytes));
        }
        used += is_kept ? piece.columns : 0;
        text.remove_prefix(piece.bytes);
    }
    return fitting;
}

}  // namespace ddprun::agent
