#include "base/utf8.hpp"

namespace ddprun {

namespace {

unsigned byte_at(std::string_view text, std::size_t at) {
    return static_cast<unsigned char>(text[at]);
}

}  // namespace

std::size_t utf8_length(std::string_view text) {
    if (text.empty()) {
        return 0;
    }
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
    // Overlong forms, surrogates and what lies beyond the last code point.
    const unsigned second = byte_at(text, 1);
    const bool is_bad = (first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
                        (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f);
    return is_bad ? 0 : length;
}

bool is_utf8(std::string_view text) {
    while (!text.empty()) {
        const std::size_t length = utf8_length(text);
        if (length == 0) {
            return false;
        }
        text.remove_prefix(length);
    }
    return true;
}

std::string utf8_cut(std::string_view text, std::size_t bytes_max) {
    if (text.size() <= bytes_max) {
        return std::string(text);
    }
    constexpr std::string_view kCut = "…";
    std::size_t end = bytes_max - kCut.size();
    while (end > 0 && (byte_at(text, end) & 0xc0U) == 0x80) {
        --end;
    }
    return std::string(text.substr(0, end)) + std::string(kCut);
}

}  // namespace ddprun
