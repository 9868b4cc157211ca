#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/doctor/machine_facts.hpp"

namespace ddprun::launcher {

enum class CheckResult {
    Good,
    Doubtful,  ///< a job will start here, and may run into it
    Bad,       ///< a job of several workers or nodes will not work here
    Unknown,   ///< could not be read
};

/// "good", "doubtful", "bad", "unknown".
[[nodiscard]] std::string_view name_of(CheckResult result);

/// The result of one check: a line for people, and what to do about it, empty where nothing is.
struct Finding {
    std::string_view check;
    CheckResult result = CheckResult::Unknown;
    std::string what;
    std::string todo;
};

/// All checks, always all of them and in this order. Pure.
[[nodiscard]] std::vector<Finding> check_machine(const MachineFacts& facts);

}  // namespace ddprun::launcher
