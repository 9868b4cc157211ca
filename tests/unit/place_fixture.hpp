#pragma once

#include "tests/unit/plan_fake_surroundings.hpp"

namespace ddprun::launcher::test {

/// `changes` over `base`; an empty value is as good as none.
inline Variables with(Variables base, const Variables& changes) {
    for (const auto& [name, value] : changes) {
        base[name] = value;
    }
    return base;
}

/// A machine that a scheduler has given to a job.
struct Node {
    std::string name;
    Variables variables;
    std::map<std::string, std::string> files = {};
    std::set<std::string> shared = {};

    [[nodiscard]] PlanOutcome outcome(const std::string& flags = "") const {
        FakeSurroundings machine;
        machine.own_name = name;
        machine.texts = files;
        machine.shared = shared;
        machine.variables.insert(variables.begin(), variables.end());
        return make_plan(words(flags + " train.py"), machine);
    }
    [[nodiscard]] LaunchPlan plan(const std::string& flags = "") const {
        INFO(name << ": " << flags);
        return as_plan(outcome(flags));
    }
    [[nodiscard]] std::string refusal(const std::string& flags = "") const {
        INFO(name << ": " << flags);
        const UsageError error = as_error(outcome(flags));
        CHECK(error.exit_code == 2);
        return error.line;
    }
};

}  // namespace ddprun::launcher::test
