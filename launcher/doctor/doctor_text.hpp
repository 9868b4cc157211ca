#pragma once

#include <string>
#include <vector>

#include "launcher/doctor/checks.hpp"

namespace ddprun::launcher {

/// Whole lines for a terminal: a line per finding, and one with what to do where something is.
[[nodiscard]] std::string doctor_text(const std::vector<Finding>& findings);

/// One line of JSON: `{"checks": [{"check", "result", "what", "todo"}]}`.
[[nodiscard]] std::string doctor_json(const std::vector<Finding>& findings);

}  // namespace ddprun::launcher
