#include "launcher/run/agent_options.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>
#include <xxhash.h>

#include "agent/output/run_folder.hpp"
#include "agent/output/same_file.hpp"
#include "agent/output/terminal.hpp"
#include "base/os/own_variable.hpp"
#include "base/os/start_program.hpp"
#include "base/os/terminal_modes.hpp"
#include "base/signal_name.hpp"
#include "rendezvous/wire/endpoint.hpp"

namespace ddprun::launcher {

namespace {

bool is_pipe(int fd) {
    struct stat found {};
    return ::fstat(fd, &found) == 0 && (S_ISFIFO(found.st_mode) || S_ISSOCK(found.st_mode));
}

/// As torchrun writes them: SIGTERM,SIGINT.
std::string signal_names(const std::vector<int>& signals) {
    std::string names;
    for (const int signal : signals) {
        names += (names.empty() ? "" : ",") + signal_name(signal);
    }
    return names;
}

agent::OutputOptions output_options(const LaunchPlan& plan, const NodeFacts& facts,
                                    const Limits& limits) {
    agent::OutputOptions output;
    output.limits = limits;
    output.log_root = facts.log_dir;
    output.program = plan.program;
    output.job = facts.job.value();
    output.rotation = {.file_bytes_max = plan.log_file_bytes, .kept_max = plan.log_files_kept};
    output.is_json = plan.is_json;
    output.hostname = facts.hostname;
    output.role = plan.role;
    output.stdout_filters = plan.stdout_filters;
    output.stderr_filters = plan.stderr_filters;
    output.prefix_template = own_variable("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
    // A single worker has the terminal to itself: its progress bar keeps its line.
    const bool has_company = plan.slots > 1 || !plan.is_single_node;
    output.prefixes =
        plan.prefix == PrefixMode::Always ||
        (plan.prefix == PrefixMode::Auto && has_company && agent::is_terminal(STDOUT_FILENO));
    output.template_wins = plan.prefix != PrefixMode::Always && !output.prefix_template.empty();
    const bool is_one_place = agent::is_same_file(STDOUT_FILENO, STDERR_FILENO);
    const std::string terminal = own_variable("TERM");
    output.draws = (output.prefixes || plan.slots > 1) && !terminal.empty() && terminal != "dumb";
    // What reads a pipe that stdout is may write to the same terminal, and would break the line.
    output.has_live_line = output.draws && !plan.is_json && agent::is_terminal(STDERR_FILENO) &&
                           !is_pipe(STDOUT_FILENO);
    output.folds = plan.folds;
    output.ranks_filter = plan.ranks_filter;
    if (plan.debug_rank) {
        // Its bytes are shown as they are: they draw on the terminal by themselves.
        output.prefixes = false;
        output.draws = false;
        output.has_live_line = false;
        if (plan.is_debug_asked) {
            output.ranks_filter = {.ranks = {*plan.debug_rank}, .has_last = false};
        }
        const Result<TerminalModes> modes = TerminalModes::of(STDIN_FILENO);
        if (modes && agent::is_terminal(STDOUT_FILENO)) {
            output.debug = agent::DebugTerminal{Rank(*plan.debug_rank), *modes};
        }
    }
    output.prefix_host = plan.is_single_node ? "" : facts.hostname;
    for (int local_rank = 0; local_rank < plan.slots; ++local_rank) {
        agent::OutputChoice choice;
        if (const auto given = plan.console.find(local_rank); given != plan.console.end()) {
            choice = given->second;
        } else {
            choice.is_merged = is_one_place;
        }
        const auto& filter = plan.local_ranks_filter;
        if (!filter.empty() &&
            std::find(filter.begin(), filter.end(), local_rank) == filter.end()) {
            choice = {false, false, false, false, choice.is_merged};
        }
        output.console[local_rank] = choice;
    }
    return output;
}

/// A job may be allowed to go on behind its time limit: one that is over says nothing.
std::optional<agent::LeaveNotice> known_end(const LaunchPlan& plan) {
    if (!plan.place || !plan.place->ends_at) {
        return std::nullopt;
    }
    const auto end = std::chrono::sys_seconds(std::chrono::seconds(*plan.place->ends_at));
    const auto left = end - std::chrono::system_clock::now();
    if (left <= left.zero()) {
        return std::nullopt;
    }
    return agent::LeaveNotice{
        .why = plan.place->job + " reaches its time limit",
        .gone_at = std::chrono::steady_clock::now() + std::chrono::duration_cast<Duration>(left),
        .is_planned = true};
}

/// PYTHONPATH of the workers. A "/" at the end says that ours is set, and empty.
std::string python_path_from(const std::string& start) {
    const char* own = std::getenv("PYTHONPATH");
    if (start.empty() || own == nullptr) {
        return start;
    }
    return *own == '\0' ? start + "/" : fmt::format("{}:{}", start, own);
}

agent::SupervisorOptions supervisor_options(const LaunchPlan& plan, const NodeFacts& facts,
                                            const Limits& limits) {
    agent::SupervisorOptions supervisor;
    supervisor.limits = limits;
    rdzv::Join& identity = supervisor.identity;
    identity.job = facts.job;
    identity.node = !plan.node_id.empty() ? NodeId(plan.node_id)
                    : plan.is_single_node ? NodeId(facts.hostname)
                                          : facts.node;
    identity.process = facts.process;
    identity.hostname = facts.hostname;
    identity.slots = plan.slots;
    identity.role = plan.role;
    identity.node_rank = plan.node_rank;
    identity.topology_key = plan.topology_key;
    identity.settings = plan.settings;
    if (!plan.is_store_of_rank_0) {
        identity.workers_max = static_cast<int>(plan.relays_store ? limits.store_relayed_max
                                                                  : limits.store_clients_max);
    }
    identity.addresses = facts.addresses;
    identity.fingerprint = facts.fingerprint;
    identity.addresses.resize(std::min(identity.addresses.size(), limits.addresses_max));
    identity.prepares = plan.prepare_command.empty() ? rdzv::Prepares::Nobody
                        : plan.is_prepared_once      ? rdzv::Prepares::Job
                                                     : rdzv::Prepares::Node;
    identity.hears_events = plan.notify.has_value();
    supervisor.tracked_run = facts.tracked_run;
    for (const std::string& name : plan.env_per_run) {
        supervisor.tracker_environment.emplace_back(name, supervisor.tracked_run);
    }
    if (plan.resumes_wandb) {
        supervisor.tracker_environment.emplace_back("WANDB_RESUME", "allow");
    }
    supervisor.command = plan.command;
    supervisor.log_dir = facts.log_dir;
    supervisor.endpoint = rdzv::to_string({plan.endpoint_host, plan.endpoint_port});
    supervisor.store_host = plan.local_addr;
    supervisor.has_preflight_command = !plan.preflight_command.empty();
    supervisor.awaits_gpu_memory = plan.may_see_gpus;
    supervisor.is_store_at_rendezvous = plan.is_store_at_rendezvous;
    supervisor.is_store_of_rank_0 = plan.is_store_of_rank_0;
    supervisor.relays_store = plan.relays_store;
    if (plan.rendezvous_lost_timeout) {
        supervisor.rendezvous_lost_timeout = *plan.rendezvous_lost_timeout;
        supervisor.lasting_rendezvous_lost_timeout = *plan.rendezvous_lost_timeout;
    }
    supervisor.connect_timeout = plan.settings.join_timeout;
    supervisor.omp_num_threads = plan.omp_num_threads;
    supervisor.sets_nccl_async_error_handling =
        std::getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING") == nullptr;
    if (!facts.preload_path.empty()) {
        const std::string others = own_variable("LD_PRELOAD");
        supervisor.preload = facts.preload_path + (others.empty() ? "" : ":" + others);
    }
    supervisor.python_path = python_path_from(facts.python_start);
    supervisor.signals_to_handle = signal_names(plan.signals_to_handle);
    supervisor.placement = plan.placement;
    supervisor.interface = plan.interface;
    supervisor.known_end = known_end(plan);
    if (supervisor.known_end && !plan.log_dir.empty()) {
        const auto saving = agent::last_saving(plan.log_dir, facts.job.value());
        if (saving) {  // more than that was not given
            supervisor.saving = std::min(*saving, plan.settings.shutdown_timeout);
        }
    }
    supervisor.kill_wait = plan.kill_wait;
    supervisor.hang_notice = plan.hang_notice;
    return supervisor;
}

}  // namespace

std::string log_dir_of(const LaunchPlan& plan, const JobId& job, std::uint64_t random) {
    if (plan.log_dir.empty()) {
        return {};
    }
    return fmt::format("{}/{}_{:08x}", plan.log_dir, job.value(),
                       static_cast<std::uint32_t>(random));
}

std::string tracked_run_of(const LaunchPlan& plan, const JobId& job) {
    const bool is_from_place = plan.place && plan.place->job_id == job.value();
    const std::string name =
        fmt::format("{}\n{}", is_from_place ? plan.place->cluster : "", job.value());
    const XXH128_hash_t hash = XXH3_128bits(name.data(), name.size());
    return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

Result<std::string> preload_path_of(const LaunchPlan& plan) {
    if (!plan.is_watched_by_preload) {
        return std::string();
    }
    Result<std::string> path = program_beside_us("ddprun-preload.so");
    if (path && path->find_first_of(" :$") != std::string::npos) {
        return Error{ErrorCode::NotFound,
                     fmt::format("--watch preload: the dynamic linker cannot load {}: a blank, ':' "
                                 "or '$' is in the path; install ddprun elsewhere",
                                 *path)};
    }
    return path;
}

Result<std::string> python_start_of(const LaunchPlan& plan) {
    if (!plan.takes_python_path) {
        return std::string();
    }
    Result<std::string> path = program_beside_us("../share/ddprun/python");
    if (!path) {  // In a package of Debian the programs lie in libexec/ddprun.
        path = program_beside_us("../../share/ddprun/python");
    }
    if (path && path->find(':') != std::string::npos) {
        return Error{ErrorCode::NotFound,
                     fmt::format("{} cannot be named in PYTHONPATH: ':' is in the path; install "
                                 "ddprun elsewhere",
                                 *path)};
    }
    if (path) {
        return std::filesystem::path(*path).lexically_normal().string();
    }
    return path;
}

agent::AgentOptions options_of_agent(const LaunchPlan& plan, const NodeFacts& facts,
                                     const agent::SavedProcessState& saved, const Limits& limits) {
    agent::AgentOptions options;
    options.supervisor = supervisor_options(plan, facts, limits);
    options.output = output_options(plan, facts, limits);
    if (plan.debug_rank) {
        options.supervisor.debugging =
            agent::Debugging{.rank = Rank(*plan.debug_rank),
                             .is_asked = plan.is_debug_asked,
                             .has_terminal = options.output.debug.has_value()};
    }
    // Every node has a store ready; one that wishes for a later place leaves the port to the first.
    options.store_port = plan.node_rank.value_or(0) > 0 ? 0 : plan.master_port;
    options.warm.program = plan.warm_program;
    options.warm.modules = plan.warm_modules;
    options.warm.learns = plan.learns_warm_modules;
    options.warm.needs_room = plan.warm_needs_room;
    options.warm.memory_max = plan.warm_memory_max;
    options.warm.known = facts.learned.modules;
    options.warm.keep_file = facts.learned.file;
    options.warm.trial = {plan.command.front(), "-c", "pass"};
    options.prepare_command = plan.prepare_command;
    options.preflight_command = plan.preflight_command;
    options.preflight_timeout = plan.preflight_timeout;
    options.drain_on = plan.drain_on;
    options.notify = plan.notify;
    options.program = plan.program;
    options.is_on_terminal =
        !plan.is_json && (agent::is_terminal(STDOUT_FILENO) || agent::is_terminal(STDERR_FILENO));
    for (const int signal : plan.signals_to_handle) {
        const bool is_ignored = signal == SIGHUP && (plan.ignores_hup || saved.ignores(SIGHUP));
        if (!is_ignored) {
            options.signals_to_handle.push_back(signal);
        }
    }
    // Users and schedulers mean the workers by these.
    for (const int signal : {SIGUSR1, SIGUSR2}) {
        const auto& handled = plan.signals_to_handle;
        const bool is_handled = std::find(handled.begin(), handled.end(), signal) != handled.end();
        if (!is_handled && !saved.ignores(signal)) {
            options.signals_to_forward.push_back(signal);
        }
    }
    // Set where ddprun is itself a worker of somebody's.
    options.error_file = own_variable("TORCHELASTIC_ERROR_FILE");
    options.keeper.path = facts.keeper_path;
    options.keeper.containment = plan.containment;
    options.keeper.limits = limits;
    options.keeper.saved_state = saved;
    return options;
}

}  // namespace ddprun::launcher
