#include <string>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include "agent/process/saved_process_state.hpp"
#include "launcher/plan/make_plan.hpp"
#include "launcher/plan/real_surroundings.hpp"
#include "launcher/run/run.hpp"

int main(int argc, char** argv) {
    const auto saved = ddprun::agent::SavedProcessState::capture();
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    const ddprun::launcher::RealSurroundings surroundings;
    const auto outcome = ddprun::launcher::make_plan(arguments, surroundings);
    if (const auto* show = std::get_if<ddprun::launcher::ShowText>(&outcome)) {
        fmt::print("{}", show->text);
        return 0;
    }
    if (const auto* usage = std::get_if<ddprun::launcher::UsageError>(&outcome)) {
        fmt::print(stderr, "ddprun: {}\n", usage->line);
        return usage->exit_code;
    }
    return ddprun::launcher::run(std::get<ddprun::launcher::LaunchPlan>(outcome), saved);
}
