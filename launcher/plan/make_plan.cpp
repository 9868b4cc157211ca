#include "launcher/plan/make_plan.hpp"

#include <string>
#include <utility>

#include "base/printable.hpp"
#include "launcher/plan/flags.hpp"
#include "launcher/plan/help.hpp"
#include "launcher/plan/sections.hpp"
#include "worker_runtime/contract/exit_codes.hpp"

namespace ddprun::launcher {

namespace {

UsageError as_usage_error(const Error& error) {
    const int exit_code = error.code == ErrorCode::NotFound           ? kExitNotFound
                          : error.code == ErrorCode::PermissionDenied ? kExitNotExecutable
                                                                      : kExitUsage;
    return UsageError{.line = printable(error.what, std::string::npos), .exit_code = exit_code};
}

Result<void> fill(const CommandLine& line, const Surroundings& surroundings, LaunchPlan& plan) {
    for (const auto take :
         {take_without_effect, take_place, take_settings, take_leaving, take_meeting, take_tls,
          take_interface, take_slots, take_place_slots, check_store_room, take_placement,
          take_output, take_debugging, take_watching, take_program}) {
        if (Result<void> taken = take(line, surroundings, plan); !taken) {
            return taken;
        }
    }
    plan.is_dry_run = line.is_on("dry-run");
    return {};
}

}  // namespace

PlanOutcome make_plan(const std::vector<std::string>& arguments, const Surroundings& surroundings) {
    const Result<CommandLine> line = read_command_line(arguments, surroundings);
    if (!line) {
        return as_usage_error(line.error());
    }
    if (line->is_on("help")) {
        return ShowText{help_text()};
    }
    if (line->is_on("version")) {
        return ShowText{version_text()};
    }
    LaunchPlan plan;
    if (Result<void> filled = fill(*line, surroundings, plan); !filled) {
        return as_usage_error(filled.error());
    }
    return plan;
}

}  // namespace ddprun::launcher
