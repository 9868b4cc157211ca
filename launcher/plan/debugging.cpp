
#include <fmt/format.h>

#include "base/limits.hpp"
#include "launcher/plan/sections.hpp"
#include "launcher/plan/values.hpp"

namespace ddprun::launcher {

namespace {

bool is_alone(const LaunchPlan& plan) {
    return plan.identity().settings.max_nodes == 1 && plan.identity().slots == 1;
}

/// A single worker on a terminal has it, as without ddprun, unless its output was to go elsewhere.
bool has_terminal_anyway(const Surroundings& surroundings, const LaunchPlan& plan) {
    const auto& local = plan.local_ranks_filter;
    const bool is_shown = plan.agent.output.console.empty() &&
                          (local.empty() || local.front() == 0) &&
                          plan.agent.output.ranks_filter.shows(Rank(0), 1);
    return is_alone(plan) && is_shown && !plan.agent.output.is_json &&
           plan.prefix != PrefixMode::Always && surroundings.is_at_terminal();
}

Result<void> take_asked(const Given& given, bool is_dry_run, const Surroundings& surroundings,
                        LaunchPlan& plan) {
    const int ranks_max = static_cast<int>(Limits{}.nodes_max) * Limits{}.slots_max;
    const Result<int> rank = parse_whole_number(given, {.least = 0, .most = ranks_max - 1});
    if (!rank) {
        return rank.error();
    }
    if (plan.agent.output.is_json) {
        return bad_value(given,
                         "what is typed and shown at a terminal is no JSON; leave this out, or "
                         "--log-format json");
    }
    const bool is_one_node = plan.identity().settings.max_nodes == 1;
    if (is_one_node && *rank >= plan.identity().slots) {
        return bad_value(given, fmt::format("the job has no such rank, only 0 to {}; raise "
                                            "--nproc-per-node, or name one of these",
                                            plan.identity().slots - 1));
    }
    // Only the rank's node needs a terminal; among several nodes it is known when they meet.
    if (is_one_node && !is_dry_run && !surroundings.is_at_terminal()) {
        return bad_value(given,
                         "stdin and stdout of ddprun must be a terminal; start it at one, without "
                         "redirections or pipes (over ssh: ssh -t)");
    }
    plan.agent.supervisor.debugging = agent::Debugging{.rank = Rank(*rank), .is_asked = true};
    return {};
}

}  // namespace

Result<void> take_debugging(const CommandLine& line, const Surroundings& surroundings,
                            LaunchPlan& plan) {
    const std::optional<Given> given = line.value("debug-rank");
    if (given && !given->value.empty()) {
        return take_asked(*given, line.is_on("dry-run"), surroundings, plan);
    }
    if (!has_terminal_anyway(surroundings, plan)) {
        return {};
    }
    plan.agent.supervisor.debugging = agent::Debugging{.rank = Rank(0)};
    if (const std::optional<Given> hang = line.value("hang-timeout");
        hang && (plan.identity().settings.learns_hang_timeout ||
                 plan.identity().settings.hang_timeout.count() > 0)) {
        plan.warnings.push_back(fmt::format(
            "{} has no effect: the worker has this terminal, and may wait for what is typed; with "
            "</dev/null it is looked for",
            hang->shown()));
    }
    return {};
}

}  // namespace ddprun::launcher
