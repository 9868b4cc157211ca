#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/result.hpp"

/// JSON from and for files that may be damaged or hostile.
namespace ddprun::worker {

/// `text` in quotes, fit for one line of an error: escaped, ASCII only, cut when long.
[[nodiscard]] std::string in_quotes(std::string_view text);

/// Parses one JSON value that fills `text`. Refused beside what is no JSON: nesting deeper than
/// `depth_max`, a key that occurs twice in an object, a NUL byte, a byte order mark. Never throws.
[[nodiscard]] Result<nlohmann::json> parse_json(std::string_view text, int depth_max);

}  // namespace ddprun::worker
