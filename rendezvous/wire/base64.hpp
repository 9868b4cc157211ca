#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ddprun::rdzv {

[[nodiscard]] std::string base64_encode(std::string_view bytes);

/// Nothing: `text` is not base64 with its padding.
[[nodiscard]] std::optional<std::string> base64_decode(std::string_view text);

}  // namespace ddprun::rdzv
