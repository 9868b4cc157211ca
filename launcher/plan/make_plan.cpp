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

/// The flags that mean something by themselves, in the order of the table.
Result<void> fill_by_rows(const CommandLine& line, LaunchPlan& plan) {
    for (const Flag& flag : all_flags()) {
        const std::optional<Given> given = flag.fill == nullptr ? std::nullopt : line.asked(flag);
        if (given) {
            if (Result<void> filled = flag.fill(*given, plan); !filled) {
                return filled;
            }
        }
    }
    return {};
}

Result<void> fill_plan(CommandLine line, const Surroundings& surroundings, LaunchPlan& plan) {
    if (Result<void> taken = take_rdzv_conf(line, plan); !taken) {
        return taken;
    }
    if (Result<void> filled = fill_by_rows(line, plan); !filled) {
        return filled;
    }
    for (const auto take :
         {take_without_effect, take_place, take_nodes, take_leaving, take_meeting, take_tls,
          take_interface, take_slots, take_place_slots, check_store_room, take_placement,
          take_output, take_debugging, take_env_per_run, take_program, take_warm, take_memory}) {
        if (Result<void> taken = take(line, surroundings, plan); !taken) {
            return taken;
        }
    }
    return {};
}

}  // namespace

PlanOutcome make_plan(const std::vector<std::string>& arguments, const Surroundings& surroundings) {
    const Result<CommandLine> line = read_command_line(arguments, surroundings);
    if (!line) {
        return as_usage_error(line.error());
    }
    if (line->is_on("help-all")) {
        return ShowText{help_all_text()};
    }
    if (line->is_on("help")) {
        return ShowText{help_text()};
    }
    if (line->is_on("version")) {
        return ShowText{version_text()};
    }
    if (const auto shell = line->value("print-completion")) {
        Result<std::string> text = completion_text(*shell);
        return text ? PlanOutcome{ShowText{*std::move(text)}} : as_usage_error(text.error());
    }
    LaunchPlan plan;
    if (Result<void> filled = fill_plan(*line, surroundings, plan); !filled) {
        return as_usage_error(filled.error());
    }
    return plan;
}

}  // namespace ddprun::launcher
