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
#include "agent/output/terminal.hpp"
#include "base/os/file_identity.hpp"
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

/// A worker whose streams the user has not chosen has both as one if ddprun's are one. A worker
/// that the filter leaves out is not shown.
agent::OutputChoice choice_of(const LaunchPlan& plan, int local_rank, bool is_one_place) {
    const auto& chosen = plan.agent.output.console;
    const auto found = chosen.find(local_rank);
    agent::OutputChoice choice =
        found != chosen.end() ? found->second : agent::OutputChoice{.is_merged = is_one_place};
    const auto& filter = plan.local_ranks_filter;
    if (!filter.empty() && std::find(filter.begin(), filter.end(), local_rank) == filter.end()) {
        choice = {false, false, false, false, choice.is_merged};
    }
    return choice;
}

/// The bytes of a rank that is debugged are shown as they are: they draw on the terminal by
/// themselves.
void show_debugged(const agent::Debugging& debugging, agent::OutputOptions& output) {
    output.prefixes = false;
    output.draws = false;
    output.has_live_line = false;
    if (debugging.is_asked) {
        output.ranks_filter = {.ranks = {debugging.rank.value()}, .has_last = false};
    }
    if (TerminalModes::of(STDIN_FILENO) && agent::is_terminal(STDOUT_FILENO)) {
        output.debug = debugging.rank;
    }
}

/// Empty: this ddprun is it.
std::string rendezvous_of(const LaunchPlan& plan) {
    if (plan.is_single_node) {
        return {};
    }
    std::string list = rdzv::to_string({plan.endpoint_host, plan.endpoint_port});
    for (const rdzv::Endpoint& other : plan.other_endpoints) {
        list += "," + rdzv::to_string(other);
    }
    return list;
}

void complete_output(const LaunchPlan& plan, const NodeFacts& facts, const Limits& limits,
                     agent::OutputOptions& output) {
    output.limits = limits;
    output.log_root = facts.log_dir;
    output.program = plan.agent.program;
    output.job = facts.job.value();
    output.rendezvous = rendezvous_of(plan);
    output.hostname = facts.hostname;
    // A single worker has the terminal to itself: its progress bar keeps its line.
    const int slots = plan.identity().slots;
    const bool has_company = slots > 1 || !plan.is_single_node;
    output.prefixes =
        plan.prefix == PrefixMode::Always ||
        (plan.prefix == PrefixMode::Auto && has_company && agent::is_terminal(STDOUT_FILENO));
    output.template_wins = plan.prefix != PrefixMode::Always && !output.prefix_template.empty();
    const std::string terminal = own_variable("TERM");
    output.draws = (output.prefixes || slots > 1) && !terminal.empty() && terminal != "dumb";
    // A program that reads stdout's pipe may write to the same terminal, and would break the line.
    output.has_live_line = output.draws && !output.is_json && agent::is_terminal(STDERR_FILENO) &&
                           !is_pipe(STDOUT_FILENO);
    if (const std::optional<agent::Debugging>& debugging = plan.agent.supervisor.debugging) {
        show_debugged(*debugging, output);
    }
    output.prefix_host = plan.is_single_node ? "" : facts.hostname;
    const bool is_one_place = is_same_file(STDOUT_FILENO, STDERR_FILENO);
    for (int local_rank = 0; local_rank < slots; ++local_rank) {
        output.console[local_rank] = choice_of(plan, local_rank, is_one_place);
    }
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

void complete_identity(const LaunchPlan& plan, const NodeFacts& facts, const Limits& limits,
                       rdzv::Join& identity) {
    identity.job = facts.job;
    if (identity.node.value().empty()) {
        identity.node = plan.is_single_node ? NodeId(facts.hostname) : facts.node;
    }
    identity.process = facts.process;
    identity.hostname = facts.hostname;
    const agent::SupervisorOptions& supervisor = plan.agent.supervisor;
    if (!supervisor.is_store_of_rank_0) {
        identity.workers_max = static_cast<int>(supervisor.relays_store ? limits.store_relayed_max
                                                                        : limits.store_clients_max);
    }
    identity.fingerprint = facts.fingerprint;
    identity.addresses = facts.addresses;
    identity.addresses.resize(std::min(identity.addresses.size(), limits.addresses_max));
    identity.hears_events = plan.agent.notify.has_value();
}

void complete_supervisor(const LaunchPlan& plan, const NodeFacts& facts, const Limits& limits,
                         agent::SupervisorOptions& supervisor) {
    supervisor.limits = limits;
    complete_identity(plan, facts, limits, supervisor.identity);
    supervisor.tracked_run = facts.tracked_run;
    for (const std::string& name : plan.env_per_run) {
        supervisor.tracker_environment.emplace_back(name, supervisor.tracked_run);
    }
    if (plan.resumes_wandb) {
        supervisor.tracker_environment.emplace_back("WANDB_RESUME", "allow");
    }
    supervisor.log_dir = facts.log_dir;
    supervisor.endpoint = rdzv::to_string({plan.endpoint_host, plan.endpoint_port});
    supervisor.rendezvous = rendezvous_of(plan);
    supervisor.has_preflight_command = !plan.agent.preflight_command.empty();
    supervisor.connect_timeout = plan.identity().settings.join_timeout;
    supervisor.sets_nccl_async_error_handling =
        std::getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING") == nullptr;
    if (!facts.preload_path.empty()) {
        const std::string others = own_variable("LD_PRELOAD");
        supervisor.preload = facts.preload_path + (others.empty() ? "" : ":" + others);
    }
    supervisor.python_path = python_path_from(facts.python_start);
    supervisor.signals_to_handle = signal_names(plan.agent.signals_to_handle);
    supervisor.known_end = known_end(plan);
    if (supervisor.known_end && !plan.log_dir.empty()) {
        const auto saving = agent::last_saving(plan.log_dir, facts.job.value());
        if (saving) {  // more than that was not given
            supervisor.saving = std::min(*saving, plan.identity().settings.shutdown_timeout);
        }
    }
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
    if (!path) {
        return Error{ErrorCode::NotFound,
                     "Python workers have no standbys, and their deaths are noticed later: the "
                     "folder share/ddprun/python is missing, which belongs beside the folder bin; "
                     "install all of ddprun"};
    }
    if (path->find(':') != std::string::npos) {
        return Error{ErrorCode::NotFound,
                     fmt::format("{} cannot be named in PYTHONPATH: ':' is in the path; install "
                                 "ddprun elsewhere",
                                 *path)};
    }
    return std::filesystem::path(*path).lexically_normal().string();
}

agent::AgentOptions options_of_agent(const LaunchPlan& plan, const NodeFacts& facts,
                                     const agent::SavedProcessState& saved, const Limits& limits) {
    agent::AgentOptions options = plan.agent;
    complete_supervisor(plan, facts, limits, options.supervisor);
    complete_output(plan, facts, limits, options.output);
    if (options.supervisor.debugging) {
        options.supervisor.debugging->has_terminal = options.output.debug.has_value();
    }
    // Every node has a store ready; one that wishes for a later place leaves the port to the first.
    options.store_port = plan.identity().node_rank.value_or(0) > 0 ? 0 : plan.master_port;
    options.warm.known = facts.learned.modules;
    options.warm.keep_file = facts.learned.file;
    options.warm.trial = {options.supervisor.command.front(), "-c", "pass"};
    options.is_on_terminal = !options.output.is_json && (agent::is_terminal(STDOUT_FILENO) ||
                                                         agent::is_terminal(STDERR_FILENO));
    if (saved.ignores(SIGHUP)) {
        std::erase(options.signals_to_handle, SIGHUP);
    }
    // Users and schedulers mean the workers by these.
    for (const int signal : {SIGUSR1, SIGUSR2}) {
        const auto& handled = plan.agent.signals_to_handle;
        const bool is_handled = std::find(handled.begin(), handled.end(), signal) != handled.end();
        if (!is_handled && !saved.ignores(signal)) {
            options.signals_to_forward.push_back(signal);
        }
    }
    // Set if ddprun is itself a worker of another launcher.
    options.error_file = own_variable("TORCHELASTIC_ERROR_FILE");
    return options;
}

}  // namespace ddprun::launcher
