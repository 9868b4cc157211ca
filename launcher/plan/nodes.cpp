// How many nodes a job has.

#include <chrono>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "base/limits.hpp"
#include "launcher/plan/sections.hpp"
#include "launcher/plan/values.hpp"

namespace ddprun::launcher {

namespace {

/// --node-unit: the bounds are moved to the multiples between them.
Result<void> take_node_unit(const CommandLine& line, LaunchPlan& plan) {
    const std::optional<Given> given = line.value("node-unit");
    if (!given) {
        return {};
    }
    const auto nodes_max = static_cast<int>(Limits{}.nodes_max);
    const Result<int> unit = parse_whole_number(*given, {.least = 1, .most = nodes_max});
    if (!unit) {
        return unit.error();
    }
    rdzv::JobSettings& settings = plan.identity().settings;
    const std::optional<Given> nodes = line.value("nnodes");
    const std::string shown = nodes ? nodes->shown() : "--nnodes 1";
    if (*unit == 1) {
        return {};
    }
    if (!settings.node_sizes.empty()) {
        return bad_value(*given,
                         fmt::format("{} lists the sizes already; leave one of both out", shown));
    }
    if (*unit > settings.max_nodes) {
        return bad_value(*given,
                         fmt::format("larger than {}, so no number of nodes would do; write "
                                     "--nnodes {}, or leave it out",
                                     shown, *unit));
    }
    const int most = settings.max_nodes / *unit * *unit;
    if (most < settings.min_nodes) {
        return bad_value(
            *given, fmt::format("{} has no multiple of it; write --nnodes {} or --nnodes {}", shown,
                                most, most + *unit));
    }
    settings.node_unit = *unit;
    settings.min_nodes = (settings.min_nodes + *unit - 1) / *unit * *unit;
    settings.max_nodes = most;
    return {};
}

Result<void> take_counts(const CommandLine& line, LaunchPlan& plan) {
    const std::optional<Given> given = line.value("nnodes");
    if (!given) {
        return {};
    }
    const Result<NodeCounts> counts = parse_nnodes(*given);
    if (!counts) {
        return counts.error();
    }
    const auto nodes_max = static_cast<int>(Limits{}.nodes_max);
    if (counts->most > nodes_max) {
        return bad_value(*given, fmt::format("at most {} nodes are possible", nodes_max));
    }
    plan.identity().settings.min_nodes = counts->least;
    plan.identity().settings.max_nodes = counts->most;
    plan.identity().settings.node_sizes = counts->sizes;
    return {};
}

/// After a failure no agent waits longer than workers have to leave when they are asked to.
void cut_failure_grace(const CommandLine& line, LaunchPlan& plan) {
    if (plan.identity().settings.failure_grace <= plan.identity().settings.shutdown_timeout) {
        return;
    }
    plan.identity().settings.failure_grace = plan.identity().settings.shutdown_timeout;
    if (const std::optional<Given> grace = line.value("failure-grace")) {
        plan.warnings.push_back(fmt::format(
            "{} is cut to the shutdown timeout of {:g} s: after a failure nobody waits longer",
            grace->shown(),
            std::chrono::duration<double>{plan.identity().settings.shutdown_timeout}.count()));
    }
}

}  // namespace

Result<void> take_nodes(const CommandLine& line, const Surroundings& /*surroundings*/,
                        LaunchPlan& plan) {
    if (Result<void> taken = take_counts(line, plan); !taken) {
        return taken;
    }
    cut_failure_grace(line, plan);
    return take_node_unit(line, plan);
}

}  // namespace ddprun::launcher
