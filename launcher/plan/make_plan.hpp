#pragma once

#include <string>
#include <variant>
#include <vector>

#include "launcher/plan/launch_plan.hpp"
#include "launcher/surroundings/surroundings.hpp"

namespace ddprun::launcher {

/// --help, --help-all, --version or --print-completion: print this on stdout, ends with a newline;
/// exit 0.
struct ShowText {
    std::string text;
};

/// A request that cannot be carried out: print `line` (one line, without "ddprun: ") on stderr and
/// exit. The code is 2, or 126 and 127 for a program that cannot be executed or does not exist.
struct UsageError {
    std::string line;
    int exit_code = 2;
};

using PlanOutcome = std::variant<LaunchPlan, ShowText, UsageError>;

/// Turns what the user typed (`arguments` without argv[0]) into a checked and complete plan.
/// Changes nothing, opens nothing; the same inputs give the same outcome.
[[nodiscard]] PlanOutcome make_plan(const std::vector<std::string>& arguments,
                                    const Surroundings& surroundings);

}  // namespace ddprun::launcher
