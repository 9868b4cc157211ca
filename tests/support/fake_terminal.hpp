#pragma once

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::test {

/// The lines that a person sees on a terminal that gets bytes: all since the beginning, those that
/// have scrolled out of the window too. Knows what agent/output/screen.cpp sends, and fails (with a
/// line that says so) at anything else.
class FakeTerminal {
public:
    FakeTerminal(std::size_t rows, std::size_t columns) : rows_(rows), columns_(columns) {}

    void feed(std::string_view bytes) {
        for (std::size_t at = 0; at < bytes.size();) {
            const char byte = bytes[at++];
            if (byte == '\n') {
                ++row_;
                column_ = 0;
            } else if (byte == '\r') {
                column_ = 0;
            } else if (byte == '\x1b') {
                const std::size_t end = bytes.find_first_not_of("0123456789;", at + 1);
                control(end < bytes.size() ? bytes[end] : '?',
                        std::atoi(std::string(bytes.substr(at + 1, end - at - 1)).c_str()));
                at = end + 1;
            } else {
                put(byte);
            }
            if (row_ >= lines_.size()) {
                lines_.resize(row_ + 1);
            }
        }
    }

    /// Without blanks at their ends.
    [[nodiscard]] std::vector<std::string> lines() const {
        std::vector<std::string> shown = lines_;
        for (std::string& line : shown) {
            line.erase(line.find_last_not_of(' ') + 1);
        }
        return shown;
    }

    [[nodiscard]] std::string text() const {
        std::string all;
        for (const std::string& line : lines()) {
            all += line + "\n";
        }
        return all;
    }

private:
    void put(char byte) {
        const bool is_continued = (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U;
        if (column_ >= columns_ && !is_continued) {
            ++row_;
            column_ = 0;
            lines_.resize(std::max(lines_.size(), row_ + 1));
        }
        std::string& line = lines_[row_];
        line.resize(std::max(line.size(), column_ + 1), ' ');
        line[column_++] = byte;
    }

    void control(char what, int number) {
        std::string& line = lines_[row_];
        if (what == 'A') {
            const std::size_t top = lines_.size() > rows_ ? lines_.size() - rows_ : 0;
            const std::size_t wanted = static_cast<std::size_t>(std::max(number, 1));
            row_ = std::max(top, row_ - std::min(row_, wanted));
        } else if (what == 'K' || what == 'J') {
            line.resize(std::min(line.size(), column_));
            if (what == 'J') {
                lines_.resize(row_ + 1);
            }
        } else if (what != 'm') {
            lines_.push_back("FakeTerminal does not know this control sequence");
        }
    }

    const std::size_t rows_;
    const std::size_t columns_;
    std::vector<std::string> lines_{std::string()};
    std::size_t row_ = 0;
    std::size_t column_ = 0;
};

}  // namespace ddprun::test
