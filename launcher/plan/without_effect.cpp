#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "launcher/plan/sections.hpp"
#include "launcher/plan/values.hpp"

namespace ddprun::launcher {

namespace {

struct WithoutEffect {
    std::string_view flag;
    std::array<std::string_view, 3>
        accepted;  ///< torchrun's own choices; an empty one asks nothing
    std::string_view otherwise;
};

/// torchrun's plug-ins, and how its Python makes processes: there is nothing of either here.
constexpr std::array kWithoutEffect = {
    WithoutEffect{
        "event-log-handler", {"null", "console", ""}, "ddprun has no event handlers; leave it out"},
    WithoutEffect{"logs-specs",
                  {"default", "", ""},
                  "ddprun has no log plug-ins; leave it out, --log-dir, --redirects and --tee "
                  "choose what is kept"},
    WithoutEffect{"start-method",
                  {"spawn", "fork", "forkserver"},
                  "must be spawn, fork or forkserver, which mean the same here: workers are "
                  "executed; leave it out"},
};

struct UnusedVariable {
    const char* name;
    std::string_view asks;  ///< the value with which torchrun does something; empty: any
    std::string_view why;
};

constexpr std::array kUnusedVariables = {
    UnusedVariable{"TORCHELASTIC_ENABLE_FILE_TIMER", "1", "ddprun serves no file timers"},
    UnusedVariable{"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", "",
                   "ddprun does not look for workers in uninterruptible sleep"},
};

}  // namespace

Result<void> take_without_effect(const CommandLine& line, const Surroundings& surroundings,
                                 LaunchPlan& plan) {
    for (const WithoutEffect& it : kWithoutEffect) {
        const std::optional<Given> given = line.value(it.flag);
        if (given &&
            std::find(it.accepted.begin(), it.accepted.end(), given->value) == it.accepted.end()) {
            return bad_value(*given, it.otherwise);
        }
    }
    const std::optional<Given> handler = line.value("event-log-handler");
    if (handler && handler->value == "console") {
        plan.warnings.push_back(
            fmt::format("{} has no effect: ddprun says on its console what happens, not as JSON",
                        handler->shown()));
    }
    for (const UnusedVariable& unused : kUnusedVariables) {
        const std::string value = surroundings.variable(unused.name).value_or("");
        if (!value.empty() && (unused.asks.empty() || value == unused.asks)) {
            plan.warnings.push_back(
                fmt::format("{} has no effect: {}", Given{unused.name, value}.shown(), unused.why));
        }
    }
    return {};
}

}  // namespace ddprun::launcher
