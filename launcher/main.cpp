#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include "agent/process/saved_process_state.hpp"
#include "launcher/machine/real_surroundings.hpp"
#include "launcher/plan/make_plan.hpp"
#include "launcher/run/dry_run.hpp"
#include "launcher/run/init_process.hpp"
#include "launcher/run/run.hpp"

int main(int argc, char** argv) {
    const auto saved = ddprun::agent::SavedProcessState::capture();
    std::vector<std::string> arguments(argv + 1, argv + argc);
    if (argc > 0 && std::string_view(argv[0]).ends_with("ddprun-launch")) {
        arguments.insert(arguments.begin(), "--legacy-launch");
    }
    const auto surroundings = ddprun::launcher::real_surroundings();
    const auto outcome = ddprun::launcher::make_plan(arguments, *surroundings);
    if (const auto* show = std::get_if<ddprun::launcher::ShowText>(&outcome)) {
        fmt::print("{}", show->text);
        return 0;
    }
    if (const auto* usage = std::get_if<ddprun::launcher::UsageError>(&outcome)) {
        fmt::print(stderr, "ddprun: {}\n", usage->line);
        return usage->exit_code;
    }
    const auto& plan = std::get<ddprun::launcher::LaunchPlan>(outcome);
    if (plan.is_dry_run) {
        for (const auto* lines : {&plan.warnings, &plan.notes}) {
            for (const std::string& line : *lines) {
                fmt::print(stderr, "ddprun: {}\n", line);
            }
        }
        fmt::print("{}", ddprun::launcher::dry_run_text(plan, saved));
        return 0;
    }
    ddprun::launcher::stay_behind_as_init();
    return ddprun::launcher::run(plan, saved);
}
