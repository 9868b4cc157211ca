#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ddprun {

/// `bytes` as one line that can be shown anywhere: control characters, line ends and bytes that are
/// not UTF-8 become `\n`, `\t`, `\x1b`, …; what is longer than `columns_max` characters is cut and
/// ends with `…`.
[[nodiscard]] std::string printable(std::string_view bytes, std::size_t columns_max);

}  // namespace ddprun
