// Chooses the modules that standbys import, or wait with.

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "agent/warm/standby_slots.hpp"
#include "launcher/plan/sections.hpp"
#include "launcher/plan/values.hpp"

namespace ddprun::launcher {

Result<void> take_warm(const CommandLine& line, const Surroundings& /*surroundings*/,
                       LaunchPlan& plan) {
    const std::optional<Given> given = line.value("warm");
    if (given && given->value == "off") {
        return {};
    }
    const bool is_auto = !given || given->value == "auto";
    const bool learns = is_auto || given->value == "on";
    std::vector<std::string> modules;
    for (const std::string_view name :
         learns ? std::vector<std::string_view>() : split(given->value, ',')) {
        if (!agent::is_module_name(name) || name == "on" || name == "auto" || name == "off") {
            return Error{ErrorCode::InvalidArgument,
                         fmt::format("{}: {} is no module of Python; name those that take long to "
                                     "import, as in --warm torch,torch._dynamo, or write auto, on "
                                     "or off",
                                     given->shown(), name.empty() ? "an empty name" : name)};
        }
        modules.emplace_back(name);
    }
    const bool may_restart =
        plan.identity().settings.max_restarts > 0 || plan.identity().settings.max_nodes > 1;
    if (is_auto && !may_restart) {
        return {};
    }
    if (!plan.python.empty() && !plan.takes_python_path) {
        plan.warnings.push_back(
            "--warm: workers start cold: a Python with -I, -E or -S does not run what ddprun puts "
            "before PYTHONPATH");
        return {};
    }
    if (plan.python.empty() && !learns) {
        plan.warnings.push_back(
            fmt::format("{} has no effect: {} is no script or module that ddprun runs with Python; "
                        "for a program that uses ddprun::run() write --warm on",
                        given->shown(), plan.agent.program));
        return {};
    }
    if (plan.python.empty()) {
        const std::string& path = plan.agent.supervisor.command.front();
        plan.agent.warm.program = path.substr(path.find_last_of('/') + 1);
    }
    plan.agent.warm.modules = std::move(modules);
    plan.agent.warm.learns = learns;
    plan.agent.warm.needs_room = is_auto;
    return {};
}

}  // namespace ddprun::launcher
