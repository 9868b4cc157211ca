#include <algorithm>
#include <cctype>
#include <string_view>

#include <fmt/format.h>

#include "launcher/plan/sections.hpp"
#include "launcher/plan/values.hpp"
#include "worker_runtime/contract/worker_environment.hpp"

namespace ddprun::launcher {

namespace {

bool is_variable_name(std::string_view name) {
    return !name.empty() && std::isdigit(static_cast<unsigned char>(name.front())) == 0 &&
           std::all_of(name.begin(), name.end(), [](unsigned char c) {
               return c == '_' || (c < 0x80 && std::isalnum(c) != 0);
           });
}

bool is_set_anyway(std::string_view name) {
    return std::any_of(kWorkerVariables.begin(), kWorkerVariables.end(),
                       [name](const WorkerVariable& variable) { return variable.key == name; });
}

}  // namespace

/// A variable that the user has set stays, even if it is empty.
Result<void> take_env_per_run(const CommandLine& line, const Surroundings& surroundings,
                              LaunchPlan& plan) {
    const std::optional<Given> given = line.value("env-per-run");
    if (!given || given->value.empty()) {
        return {};
    }
    if (plan.identity().job.value() == "none" && !line.value("rdzv-id")) {
        return bad_value(*given, "it needs --rdzv-id: all jobs without one would be one run");
    }
    for (const std::string_view name : split(given->value, ',')) {
        if (!is_variable_name(name)) {
            return bad_value(*given, fmt::format("\"{}\" is no name of a variable; write names "
                                                 "with commas: WANDB_RUN_ID,MY_RUN_ID",
                                                 name));
        }
        if (is_set_anyway(name)) {
            return bad_value(
                *given, fmt::format("ddprun sets {} itself for each worker; leave it out", name));
        }
        const std::string variable{name};
        const bool is_listed = std::find(plan.env_per_run.begin(), plan.env_per_run.end(),
                                         variable) != plan.env_per_run.end();
        if (is_listed || surroundings.variable(variable)) {
            continue;
        }
        plan.env_per_run.push_back(variable);
        plan.resumes_wandb = plan.resumes_wandb ||
                             (variable == "WANDB_RUN_ID" && !surroundings.variable("WANDB_RESUME"));
        if (variable == "MLFLOW_RUN_ID") {
            plan.warnings.push_back(fmt::format(
                "{}: MLflow opens only runs that it has made, under numbers of its own; find "
                "yours by a tag that holds DDPRUN_RUN_ID",
                given->shown()));
        }
    }
    return {};
}

}  // namespace ddprun::launcher
