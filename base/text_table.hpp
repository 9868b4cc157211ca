#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

using TableRow = std::vector<std::string>;

/// Rows of equally many cells as lines, each behind `indent`, with columns as wide as they need.
[[nodiscard]] std::string table_text(const std::vector<TableRow>& rows,
                                     std::string_view indent = "");

}  // namespace ddprun
