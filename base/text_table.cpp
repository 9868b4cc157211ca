#include "base/text_table.hpp"

#include <algorithm>
#include <cstddef>

#include <fmt/format.h>

namespace ddprun {

std::string table_text(const std::vector<TableRow>& rows, std::string_view indent) {
    std::vector<std::size_t> widths(rows.front().size());
    for (const TableRow& row : rows) {
        for (std::size_t i = 0; i < widths.size(); ++i) {
            widths[i] = std::max(widths[i], row[i].size());
        }
    }
    std::string text;
    for (const TableRow& row : rows) {
        std::string line{indent};
        for (std::size_t i = 0; i < widths.size(); ++i) {
            line += fmt::format("{:<{}}  ", row[i], widths[i]);
        }
        line.erase(line.find_last_not_of(' ') + 1);
        text += line + "\n";
    }
    return text;
}

}  // namespace ddprun
