#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ddprun::agent {

/// How many columns of a terminal `text` takes, as UTF-8 and without control characters but
/// tabulators and escape sequences. Bytes that are no UTF-8 count as one column each. Pure.
[[nodiscard]] std::size_t width_of(std::string_view text);

/// As much of `text` from its beginning as fits into `columns`, with all its escape sequences, so
/// that colours end where they should. Tabulators become blanks. Pure.
[[nodiscard]] std::string fit_columns(std::string_view text, std::size_t columns);

}  // namespace ddprun::agent
