#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace ddprun::rdzv {

/// The JSON of a file that anybody may have written: what is nested deeper than
/// Limits::json_depth_max is left out, and what is no JSON at all is `is_discarded()`. Pure.
[[nodiscard]] nlohmann::json parse_shallow_json(std::string_view text);

/// The text under `key`; empty if `object` is no object, or has no text of that name.
[[nodiscard]] std::string text_in(const nlohmann::json& object, const char* key);

}  // namespace ddprun::rdzv
