// Log folder and console.

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "launcher/plan/log_place.hpp"
#include "launcher/plan/sections.hpp"
#include "launcher/plan/values.hpp"

namespace ddprun::launcher {

namespace {

constexpr int kStdoutBit = 1;
constexpr int kStderrBit = 2;

/// Says what a rank that this node does not have was meant for; the flag may serve other nodes.
void warn_of_missing_ranks(const Given& given, int highest, LaunchPlan& plan) {
    if (highest >= plan.identity().slots) {
        plan.warnings.push_back(fmt::format("{}: this node has no local rank {}, only 0 to {}",
                                            given.shown(), highest, plan.identity().slots - 1));
    }
}

/// Reads --redirects or --tee.
Result<StreamChoice> streams_of(const CommandLine& line, std::string_view flag, LaunchPlan& plan) {
    const std::optional<Given> given = line.value(flag);
    Result<StreamChoice> streams = given ? parse_streams(*given) : Result<StreamChoice>();
    if (streams && !streams->by_rank.empty()) {
        warn_of_missing_ranks(*given, streams->by_rank.rbegin()->first, plan);
    }
    return streams;
}

Result<void> take_streams(const CommandLine& line, LaunchPlan& plan) {
    const Result<StreamChoice> redirected = streams_of(line, "redirects", plan);
    const Result<StreamChoice> teed = streams_of(line, "tee", plan);
    if (!redirected || !teed) {
        return !redirected ? redirected.error() : teed.error();
    }
    for (int rank = 0; rank < plan.identity().slots; ++rank) {
        const int tee = teed->of(rank);
        // A tee'd stream is in the log and on the console, so only the other ones vanish from it.
        const int only_logged = redirected->of(rank) & ~tee;
        // Without log files torchrun shows everything as it comes, and so does ddprun.
        if (plan.log_dir.empty() || (tee == 0 && only_logged == 0)) {
            continue;
        }
        plan.agent.output.console[rank] =
            agent::OutputChoice{.shows_stdout = (only_logged & kStdoutBit) == 0,
                                .shows_stderr = (only_logged & kStderrBit) == 0,
                                .is_teed_stdout = (tee & kStdoutBit) != 0,
                                .is_teed_stderr = (tee & kStderrBit) != 0};
    }
    return {};
}

/// Whose output is shown, of all workers of the job, and how.
Result<void> take_job_ranks(const CommandLine& line, LaunchPlan& plan) {
    if (const std::optional<Given> given = line.value("ranks-filter");
        given && !given->value.empty()) {
        Result<agent::RanksFilter> filter = parse_job_ranks(*given);
        if (!filter) {
            return filter.error();
        }
        plan.agent.output.ranks_filter = *std::move(filter);
        // How many ranks several nodes have together is known when they have met.
        const int highest = plan.agent.output.ranks_filter.ranks.empty()
                                ? 0
                                : plan.agent.output.ranks_filter.ranks.back();
        if (plan.is_single_node && highest >= plan.identity().slots) {
            plan.warnings.push_back(fmt::format("{}: the job has no rank {}, only 0 to {}",
                                                given->shown(), highest,
                                                plan.identity().slots - 1));
        }
    }
    return {};
}

/// torchrun's --duplicate-*-filters: they apply to tee'd streams only.
void take_filters(const CommandLine& line, LaunchPlan& plan) {
    struct Filter {
        std::string_view flag;
        std::vector<std::string>* target;
        bool agent::OutputChoice::*is_teed;
    };
    for (const Filter& filter :
         {Filter{"duplicate-stdout-filters", &plan.agent.output.stdout_filters,
                 &agent::OutputChoice::is_teed_stdout},
          Filter{"duplicate-stderr-filters", &plan.agent.output.stderr_filters,
                 &agent::OutputChoice::is_teed_stderr}}) {
        const std::optional<Given> given = line.value(filter.flag);
        if (!given) {
            continue;
        }
        *filter.target = parse_texts(given->value);
        const bool has_tee =
            std::any_of(plan.agent.output.console.begin(), plan.agent.output.console.end(),
                        [&filter](const auto& choice) { return choice.second.*filter.is_teed; });
        if (!filter.target->empty() && !has_tee) {
            plan.warnings.push_back(fmt::format(
                "{} has no effect: it copies lines of tee'd streams, and {}", given->shown(),
                plan.log_dir.empty() ? "there are no log files" : "--tee names none here"));
        }
    }
}

Result<void> take_log_dir(const CommandLine& line, const Surroundings& surroundings,
                          LaunchPlan& plan) {
    const std::optional<Given> given = line.value("log-dir");
    if (given && given->value == "/dev/null") {
        plan.log_dir.clear();
        return {};
    }
    if (!given || given->value.empty()) {
        plan.log_dir = default_log_dir(surroundings.variable("TMPDIR").value_or(""),
                                       static_cast<unsigned int>(surroundings.user_id()));
        plan.is_log_dir_default = true;
    } else {
        if (surroundings.exists(given->value) && !surroundings.is_directory(given->value)) {
            return bad_value(*given,
                             "is not a folder; name one, which is made if it is missing, "
                             "or /dev/null for no files");
        }
        plan.log_dir = given->value;
    }
    // Workers are told the path of their error file and may change their working folder.
    const std::filesystem::path absolute =
        std::filesystem::path{surroundings.working_directory()} / plan.log_dir;
    plan.log_dir = absolute.lexically_normal().string();
    if (plan.log_dir.size() > 1 && plan.log_dir.ends_with('/')) {
        plan.log_dir.pop_back();
    }
    return {};
}

/// Warns of flags about kept logs that have no effect.
void warn_of_logs(const CommandLine& line, LaunchPlan& plan) {
    const std::optional<Given> files = line.value("log-files-kept");
    if (files && plan.agent.output.rotation.file_bytes_max == 0) {
        plan.warnings.push_back(fmt::format(
            "{} has no effect: without --log-file-size no log file is ever full", files->shown()));
    }
    const std::optional<Given> runs = line.value("log-keep");
    if (runs && plan.log_dir.empty()) {
        plan.warnings.push_back(fmt::format(
            "{} has no effect: with --log-dir /dev/null there are no logs", runs->shown()));
    }
}

}  // namespace

Result<void> take_output(const CommandLine& line, const Surroundings& surroundings,
                         LaunchPlan& plan) {
    if (Result<void> taken = take_log_dir(line, surroundings, plan); !taken) {
        return taken;
    }
    if (Result<void> taken = take_streams(line, plan); !taken) {
        return taken;
    }
    const std::optional<Given> filter = line.value("local-ranks-filter");
    if (filter && !filter->value.empty()) {
        Result<std::vector<int>> ranks = parse_ranks(*filter);
        if (!ranks) {
            return ranks.error();
        }
        warn_of_missing_ranks(*filter, ranks->back(), plan);
        plan.local_ranks_filter = *std::move(ranks);
    }
    if (Result<void> taken = take_job_ranks(line, plan); !taken) {
        return taken;
    }
    take_filters(line, plan);
    warn_of_logs(line, plan);
    return {};
}

}  // namespace ddprun::launcher
