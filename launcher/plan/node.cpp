#include <algorithm>
#include <array>
#include <cctype>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "agent/warm/standby_slots.hpp"
#include "base/limits.hpp"
#include "launcher/plan/gpus.hpp"
#include "launcher/plan/log_place.hpp"
#include "launcher/plan/program.hpp"
#include "launcher/plan/script_flags.hpp"
#include "launcher/plan/sections.hpp"
#include "launcher/plan/values.hpp"

namespace ddprun::launcher {

namespace {

constexpr int kStdoutBit = 1;
constexpr int kStderrBit = 2;
/// One read of a worker's pipe.
constexpr std::uint64_t kLogFileBytesMin = std::uint64_t{64} << 10;

/// Says what a rank that this node does not have was meant for; the flag may serve other nodes.
void warn_of_missing_ranks(const Given& given, int highest, LaunchPlan& plan) {
    if (highest >= plan.slots) {
        plan.warnings.push_back(fmt::format("{}: this node has no local rank {}, only 0 to {}",
                                            given.shown(), highest, plan.slots - 1));
    }
}

Result<void> take_streams(const CommandLine& line, LaunchPlan& plan) {
    StreamChoice redirected;
    StreamChoice teed;
    struct Choice {
        std::string_view flag;
        StreamChoice* target;
    };
    for (const Choice& choice : {Choice{"redirects", &redirected}, Choice{"tee", &teed}}) {
        const std::optional<Given> given = line.value(choice.flag);
        if (!given) {
            continue;
        }
        Result<StreamChoice> streams = parse_streams(*given);
        if (!streams) {
            return streams.error();
        }
        *choice.target = *std::move(streams);
        if (!choice.target->by_rank.empty()) {
            warn_of_missing_ranks(*given, choice.target->by_rank.rbegin()->first, plan);
        }
    }
    for (int rank = 0; rank < plan.slots; ++rank) {
        const int tee = teed.of(rank);
        // A tee'd stream is in the log and on the console, so only the other ones vanish from it.
        const int only_logged = redirected.of(rank) & ~tee;
        // Without log files torchrun shows everything as it comes, and so does ddprun.
        if (plan.log_dir.empty() || (tee == 0 && only_logged == 0)) {
            continue;
        }
        plan.console[rank] = agent::OutputChoice{.shows_stdout = (only_logged & kStdoutBit) == 0,
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
        plan.ranks_filter = *std::move(filter);
        // How many ranks several nodes have together is known when they have met.
        const int highest = plan.ranks_filter.ranks.empty() ? 0 : plan.ranks_filter.ranks.back();
        if (plan.is_single_node && highest >= plan.slots) {
            plan.warnings.push_back(fmt::format("{}: the job has no rank {}, only 0 to {}",
                                                given->shown(), highest, plan.slots - 1));
        }
    }
    if (const std::optional<Given> given = line.value("fold")) {
        const Result<std::size_t> choice = parse_choice(*given, {"auto", "off"});
        if (!choice) {
            return choice.error();
        }
        plan.folds = *choice == 0;
    }
    return {};
}

/// torchrun's --duplicate-*-filters: they look at tee'd streams only.
void take_filters(const CommandLine& line, LaunchPlan& plan) {
    struct Filter {
        std::string_view flag;
        std::vector<std::string>* target;
        bool agent::OutputChoice::*is_teed;
    };
    for (const Filter& filter : {Filter{"duplicate-stdout-filters", &plan.stdout_filters,
                                        &agent::OutputChoice::is_teed_stdout},
                                 Filter{"duplicate-stderr-filters", &plan.stderr_filters,
                                        &agent::OutputChoice::is_teed_stderr}}) {
        const std::optional<Given> given = line.value(filter.flag);
        if (!given) {
            continue;
        }
        *filter.target = parse_texts(given->value);
        const bool has_tee =
            std::any_of(plan.console.begin(), plan.console.end(),
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

/// How large log files may become.
Result<void> take_log_files(const CommandLine& line, LaunchPlan& plan) {
    if (const std::optional<Given> given = line.value("log-file-size")) {
        const Result<std::uint64_t> bytes = parse_bytes(*given, kLogFileBytesMin);
        if (!bytes) {
            return bytes.error();
        }
        plan.log_file_bytes = *bytes;
    }
    if (const std::optional<Given> given = line.value("log-files-kept")) {
        const Result<int> kept = parse_whole_number(*given, {.least = 1, .most = 1'000'000});
        if (!kept) {
            return kept.error();
        }
        plan.log_files_kept = *kept;
        if (plan.log_file_bytes == 0) {
            plan.warnings.push_back(
                fmt::format("{} has no effect: without --log-file-size no log file is ever full",
                            given->shown()));
        }
    }
    return {};
}

/// How many runs stay in the log folder.
Result<void> take_log_keep(const CommandLine& line, LaunchPlan& plan) {
    if (const std::optional<Given> given = line.value("log-keep")) {
        const Result<int> kept = parse_whole_number(*given, {.least = 1, .most = 1'000'000});
        if (!kept) {
            return kept.error();
        }
        plan.log_runs_kept = *kept;
        if (plan.log_dir.empty()) {
            plan.warnings.push_back(fmt::format(
                "{} has no effect: with --log-dir /dev/null there are no logs", given->shown()));
        }
    }
    return {};
}

/// The site's own check of this machine.
Result<void> take_preflight(const CommandLine& line, LaunchPlan& plan) {
    if (const std::optional<Given> given = line.value("preflight-command")) {
        plan.preflight_command = given->value;
    }
    if (const std::optional<Given> given = line.value("preflight-timeout")) {
        const Result<Milliseconds> timeout = parse_seconds(*given, Milliseconds{1});
        if (!timeout) {
            return timeout.error();
        }
        plan.preflight_timeout = *timeout;
    }
    return {};
}

/// What the user wants done before the first workers.
Result<void> take_prepare(const CommandLine& line, LaunchPlan& plan) {
    const std::optional<Given> given = line.value("prepare");
    if (!given || given->value.empty()) {
        return {};
    }
    constexpr std::string_view kOnce = "job:";
    plan.is_prepared_once = given->value.starts_with(kOnce);
    plan.prepare_command = given->value.substr(plan.is_prepared_once ? kOnce.size() : 0);
    if (plan.prepare_command.find_first_not_of(' ') == std::string::npos) {
        return Error{ErrorCode::InvalidArgument,
                     fmt::format("{}: there is no command; write it for the shell, as in "
                                 "--prepare 'python download.py' or --prepare 'job:make data'",
                                 given->shown())};
    }
    return {};
}

/// What standbys import, or wait with; `program` is what they are standbys of.
Result<void> take_warm(const CommandLine& line, const Program& program, LaunchPlan& plan) {
    if (const std::optional<Given> most = line.value("warm-memory-max")) {
        const Result<std::uint64_t> bytes = parse_bytes(*most, 0);
        if (!bytes) {
            return bytes.error();
        }
        plan.warm_memory_max = *bytes;
    }
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
    const bool may_restart = plan.settings.max_restarts > 0 || plan.settings.max_nodes > 1;
    if (is_auto && !may_restart) {
        return {};
    }
    if (!program.python.empty() && !program.takes_python_path) {
        plan.warnings.push_back(
            "--warm: workers start cold: a Python with -I, -E or -S does not run what ddprun puts "
            "before PYTHONPATH");
        return {};
    }
    if (program.python.empty() && !learns) {
        plan.warnings.push_back(
            fmt::format("{} has no effect: {} is no script or module that ddprun runs with Python; "
                        "for a program that uses ddprun::run() write --warm on",
                        given->shown(), line.program().front()));
        return {};
    }
    if (program.python.empty()) {
        const std::string& path = program.command.front();
        plan.warm_program = path.substr(path.find_last_of('/') + 1);
    }
    plan.warm_modules = std::move(modules);
    plan.learns_warm_modules = learns;
    plan.warm_needs_room = is_auto;
    return {};
}

/// How workers are asked to end, and how it is made sure that they have.
Result<void> take_signals(const CommandLine& line, LaunchPlan& plan) {
    plan.signals_to_handle = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
    if (const std::optional<Given> given = line.value("signals-to-handle")) {
        Result<std::vector<int>> signals = parse_signals(*given);
        if (!signals) {
            return signals.error();
        }
        plan.signals_to_handle = *std::move(signals);
    }
    if (const std::optional<Given> given = line.value("containment")) {
        std::vector<std::string_view> words;
        for (const ContainmentNames& one : kContainmentNames) {
            words.push_back(one.word);
        }
        const Result<std::size_t> choice = parse_choice(*given, words);
        if (!choice) {
            return choice.error();
        }
        plan.containment = kContainmentNames.at(*choice).level;
    }
    if (const std::optional<Given> given = line.value("watch")) {
        const Result<std::size_t> choice = parse_choice(*given, {"exit", "preload"});
        if (!choice) {
            return choice.error();
        }
        plan.is_watched_by_preload = *choice == 1;
    }
    plan.ignores_hup = line.is_on("ignore-hup");
    if (plan.ignores_hup) {
        std::erase(plan.signals_to_handle, SIGHUP);
    }
    return {};
}

}  // namespace

Result<void> take_slots(const CommandLine& line, const Surroundings& surroundings,
                        LaunchPlan& plan) {
    const std::optional<Given> given = line.value("nproc-per-node");
    if (!given) {
        return {};
    }
    const std::string& wanted = given->value;
    const int most = Limits{}.slots_max;
    const auto cpus = static_cast<int>(surroundings.allowed_cpus().size());
    int slots = 0;
    if (wanted == "gpu" || wanted == "auto") {
        const std::optional<int> gpus = usable_gpus(surroundings, wanted == "gpu");
        if (!gpus && wanted == "gpu") {
            return bad_value(*given,
                             "no GPU is visible here; check nvidia-smi and "
                             "CUDA_VISIBLE_DEVICES, or write a number, cpu or auto");
        }
        slots = gpus ? *gpus : cpus;
    } else if (wanted == "cpu") {
        slots = cpus;
    } else {
        const Result<int> number = parse_whole_number(*given, {.least = 1, .most = most});
        if (!number) {
            return bad_value(*given, fmt::format("must be a number of workers from 1 to {}, or "
                                                 "auto, gpu or cpu",
                                                 most));
        }
        slots = *number;
    }
    if (slots > most) {
        return bad_value(*given, fmt::format("means {} workers here; at most {} are possible, "
                                             "write a number",
                                             slots, most));
    }
    plan.slots = slots;
    return {};
}

Result<void> check_store_room(const CommandLine& /*line*/, const Surroundings& /*surroundings*/,
                              LaunchPlan& plan) {
    if (plan.is_store_of_rank_0) {
        return {};
    }
    const auto slots = static_cast<std::uint64_t>(plan.slots);
    const auto fewest = static_cast<std::uint64_t>(plan.settings.min_nodes) * slots;
    const auto workers = static_cast<std::uint64_t>(plan.settings.max_nodes) * slots;
    const Limits limits;
    const std::size_t most =
        plan.relays_store ? limits.store_relayed_max : limits.store_clients_max;
    if (fewest > most) {
        return Error{
            ErrorCode::InvalidArgument,
            fmt::format(
                "--nnodes {} with --nproc-per-node {}: {} workers are more than the {} that the "
                "workers' store serves {}",
                plan.settings.min_nodes, plan.slots, fewest, most,
                plan.relays_store
                    ? "behind relays; start fewer"
                    : "directly; add --store-relay on, on every node: then a node's workers "
                      "share one connection")};
    }
    if (workers > most) {
        plan.warnings.push_back(fmt::format(
            "--nnodes {}:{} with --nproc-per-node {}: up to {} workers, and the workers' store "
            "serves {} {}",
            plan.settings.min_nodes, plan.settings.max_nodes, plan.slots, workers, most,
            plan.relays_store ? "behind relays, no more"
                              : "directly; for more add --store-relay on, on every node"));
    }
    return {};
}

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
    if (Result<void> taken = take_log_files(line, plan); !taken) {
        return taken;
    }
    if (Result<void> taken = take_log_keep(line, plan); !taken) {
        return taken;
    }
    if (const std::optional<Given> given = line.value("log-format")) {
        const Result<std::size_t> choice = parse_choice(*given, {"text", "json"});
        if (!choice) {
            return choice.error();
        }
        plan.is_json = *choice == 1;
    }
    if (const std::optional<Given> given = line.value("prefix")) {
        const Result<std::size_t> choice = parse_choice(*given, {"auto", "always", "never"});
        if (!choice) {
            return choice.error();
        }
        constexpr std::array kModes = {PrefixMode::Auto, PrefixMode::Always, PrefixMode::Never};
        plan.prefix = kModes[*choice];
    }
    return {};
}

Result<void> take_program(const CommandLine& line, const Surroundings& surroundings,
                          LaunchPlan& plan) {
    if (Result<void> taken = take_signals(line, plan); !taken) {
        return taken;
    }
    if (Result<void> taken = take_preflight(line, plan); !taken) {
        return taken;
    }
    if (Result<void> taken = take_prepare(line, plan); !taken) {
        return taken;
    }
    if (const std::optional<Given> given = line.value("role")) {
        const Result<std::string> role = parse_name(*given, Limits{}.name_bytes_max);
        if (!role) {
            return role.error();
        }
        plan.role = *role;
    }
    if (line.is_on("module") && line.is_on("no-python") && !line.is_on("run-path")) {
        return Error{ErrorCode::InvalidArgument,
                     "--module and --no-python contradict each other; leave one out"};
    }
    const bool passes_local_rank = line.is_on("legacy-launch") && !line.is_on("use-env");
    if (passes_local_rank && line.is_on("no-python")) {
        return Error{ErrorCode::InvalidArgument,
                     "--no-python with --legacy-launch: a program that is no Python script is not "
                     "passed --local-rank; add --use-env, it finds LOCAL_RANK in its environment"};
    }
    if (line.program().empty()) {
        return Error{ErrorCode::InvalidArgument,
                     "no program given; write ddprun [flags] PROGRAM [its arguments ...], "
                     "ddprun --help shows examples"};
    }
    const ProgramMode mode = line.is_on("run-path")    ? ProgramMode::RunPath
                             : line.is_on("module")    ? ProgramMode::Module
                             : line.is_on("no-python") ? ProgramMode::Direct
                                                       : ProgramMode::Guess;
    std::vector<std::string> typed = line.program();
    if (passes_local_rank) {
        typed.insert(typed.begin() + 1, local_rank_argument(mode, typed.front(), surroundings));
    }
    if (std::string warning = misplaced_flags(mode, line.program(), surroundings);
        !warning.empty()) {
        plan.warnings.push_back(std::move(warning));
    }
    Result<Program> program = resolve_program(mode, typed, surroundings);
    if (!program) {
        return program.error();
    }
    if (Result<void> taken = take_warm(line, *program, plan); !taken) {
        return taken.error();
    }
    plan.command = std::move(program->command);
    plan.program_file = std::move(program->file);
    plan.python = std::move(program->python);
    plan.takes_python_path = program->takes_python_path;
    if (!program->note.empty()) {
        plan.notes.push_back(std::move(program->note));
    }
    plan.program = line.program().front();
    return {};
}

}  // namespace ddprun::launcher
