#pragma once

#include <span>
#include <string>
#include <string_view>

namespace ddprun {

struct TemplateName {
    std::string_view name;
    std::string value;
};

/// Python's safe substitution of string.Template, as torchrun uses it: `$name` and `${name}` of
/// `names` become the value, `$$` becomes `$`, all else stays.
[[nodiscard]] std::string substitute(std::string_view text, std::span<const TemplateName> names);

}  // namespace ddprun
