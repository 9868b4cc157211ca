#include "launcher/run/dry_run.hpp"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "agent/process/containment_refusal.hpp"
#include "agent/supervise/worker_group.hpp"
#include "agent/warm/standby_slots.hpp"
#include "base/number_ranges.hpp"
#include "base/os/machine_identity.hpp"
#include "base/os/read_memory_room.hpp"
#include "launcher/run/agent_options.hpp"
#include "rendezvous/wire/endpoint.hpp"
#include "worker_runtime/contract/worker_environment.hpp"

namespace ddprun::launcher {

namespace {

namespace var = worker_variable;

/// Stands for values that each start chooses anew.
constexpr std::string_view kRandom = "<random>";

/// Stands for the interface that --ifname auto will find.
constexpr std::string_view kWayToEndpoint = "<interface of the way to the endpoint>";

using Pair = std::pair<std::string, std::string>;

/// As a shell would take it.
std::string quoted(const std::string& word) {
    const bool is_plain =
        !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
            return std::isalnum(c) != 0 ||
                   std::string_view("-_./=:,+@%").find(static_cast<char>(c)) !=
                       std::string_view::npos;
        });
    if (is_plain) {
        return word;
    }
    std::string text;
    bool has_control = false;
    for (const char c : word) {
        const auto byte = static_cast<unsigned char>(c);
        has_control = has_control || byte < 0x20 || byte == 0x7f;
    }
    for (const char c : word) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte < 0x20 || byte == 0x7f) {
            text += c == '\n' ? "\\n" : fmt::format("\\x{:02x}", byte);
        } else if (has_control && (c == '\\' || c == '\'')) {
            text += {'\\', c};
        } else if (c == '\'') {
            text += "'\\''";
        } else {
            text += c;
        }
    }
    return fmt::format("{}'{}'", has_control ? "$" : "", text);
}

/// Stands for values that depend on ranks: they are unknown before the group has formed.
std::string_view unknown_of_several_nodes(std::string_view key) {
    for (const WorkerVariable& variable :
         {var::kRank, var::kWorldSize, var::kGroupRank, var::kGroupWorldSize, var::kRoleRank,
          var::kRoleWorldSize, var::kTargetWorldSize}) {
        if (key == variable.key) {
            return "<from the nodes that meet>";
        }
    }
    return key == var::kMasterAddr.key     ? "<address of the first node>"
           : key == var::kNodeId.key       ? "<derived from this machine>"
           : key == var::kLocalAddress.key ? "<of the way to the endpoint>"
                                           : "";
}

std::string shown(const LaunchPlan& plan, const Pair& entry) {
    const auto& [key, value] = entry;
    const bool is_store = key == var::kMasterAddr.key || key == var::kMasterPort.key;
    if (is_store && plan.agent.supervisor.relays_store) {
        if (key == var::kMasterPort.key) {
            return "<any free port>";
        }
        return plan.agent.supervisor.is_store_at_rendezvous
                   ? "127.0.0.1"
                   : "<127.0.0.1; of the first node its address>";
    }
    if (is_store && plan.agent.supervisor.is_store_at_rendezvous) {
        return quoted(value);
    }
    if (key == var::kMasterPort.key && plan.master_port == 0) {
        return "<any free port>";
    }
    if (key == var::kPage.key) {
        return "<path of a page shared with the agent>";
    }
    const bool is_chosen = (key == var::kNodeId.key && !plan.identity().node.value().empty());
    const std::string_view unknown =
        plan.is_single_node || is_chosen ? "" : unknown_of_several_nodes(key);
    if (!unknown.empty()) {
        return std::string{unknown};
    }
    const bool is_stand_in =
        value.find(kRandom) != std::string::npos || value.find(kWayToEndpoint) != std::string::npos;
    return is_stand_in ? value : quoted(value);
}

std::string meeting_text(const LaunchPlan& plan) {
    if (plan.is_single_node) {
        return "one node, which needs no rendezvous";
    }
    std::string places = rdzv::to_string({plan.endpoint_host, plan.endpoint_port});
    for (const rdzv::Endpoint& other : plan.other_endpoints) {
        places += " or " + rdzv::to_string(other);
    }
    const rdzv::JobSettings& settings = plan.identity().settings;
    std::string count = settings.min_nodes == settings.max_nodes
                            ? fmt::format("{}", settings.max_nodes)
                            : fmt::format("{} to {}", settings.min_nodes, settings.max_nodes);
    if (!settings.node_sizes.empty()) {
        count = fmt::format("{}", fmt::join(settings.node_sizes, " or "));
    } else if (settings.node_unit > 1) {
        count += fmt::format(", a multiple of {},", settings.node_unit);
    }
    return fmt::format("{} node{} at {}", count, settings.max_nodes == 1 ? "" : "s", places);
}

/// The level that the agent will choose.
std::string containment_text(const LaunchPlan& plan) {
    if (plan.containment) {
        const std::string_view name = names_of(*plan.containment).name;
        const std::string refusal = agent::containment_refusal(*plan.containment);
        return refusal.empty() ? std::string(name)
                               : fmt::format("{}, which cannot be had here: {}", name, refusal);
    }
    const std::string refusal = agent::containment_refusal(ContainmentLevel::Cgroup);
    return refusal.empty()
               ? std::string(names_of(ContainmentLevel::Cgroup).name)
               : fmt::format("{}; {}", names_of(ContainmentLevel::Keeper).name, refusal);
}

/// The agent's own view of the first generation, as far as it is known.
std::vector<agent::WorkerSpec> workers_of(const LaunchPlan& plan,
                                          const agent::SavedProcessState& saved) {
    NodeFacts facts;
    facts.job =
        plan.identity().job.value().empty() ? JobId(std::string{kRandom}) : plan.identity().job;
    facts.tracked_run = plan.identity().job.value().empty()
                            ? std::string{kRandom}
                            : tracked_run_of(plan, plan.identity().job);
    facts.hostname = host_name();
    if (!plan.log_dir.empty()) {
        facts.log_dir = fmt::format("{}/{}_{}", plan.log_dir, facts.job.value(), kRandom);
    }
    const Result<std::string> preload = preload_path_of(plan);
    facts.preload_path = preload ? *preload : "(" + preload.error().what + ")";
    const Result<std::string> start = python_start_of(plan);
    facts.python_start = start ? *start : "(" + start.error().what + ")";
    agent::SupervisorOptions options = options_of_agent(plan, facts, saved, Limits{}).supervisor;
    if (options.interface && options.interface->follows_link) {
        options.interface->name = plan.is_single_node ? "lo" : kWayToEndpoint;
    }
    rdzv::Start row;
    row.generation = Generation(1);
    row.world_size = plan.identity().slots;
    row.role_world_size = plan.identity().slots;
    row.max_restarts = plan.identity().settings.max_restarts;
    const std::string own =
        plan.agent.supervisor.store_host.empty() ? "127.0.0.1" : plan.agent.supervisor.store_host;
    const StoreAddress store = plan.agent.supervisor.is_store_at_rendezvous
                                   ? StoreAddress{plan.endpoint_host, plan.endpoint_port}
                                   : StoreAddress{own, plan.master_port};
    const std::string address = plan.is_single_node ? "127.0.0.1" : "";
    return agent::start_of(agent::WorkerGroup(row, plan.identity().slots), options, store, address)
        .workers;
}

std::string cpus_text(const LaunchPlan& plan, const agent::WorkerSpec& worker) {
    if (worker.cpus.empty()) {
        return "  CPUs     all that ddprun may use\n";
    }
    const auto index = static_cast<std::size_t>(worker.local_rank.value());
    return fmt::format("  CPUs     {}\n  near     NUMA node {}\n", number_ranges(worker.cpus),
                       plan.agent.supervisor.placement[index].numa_node);
}

std::string terminal_text(const LaunchPlan& plan) {
    const std::optional<agent::Debugging>& debugging = plan.agent.supervisor.debugging;
    if (!debugging) {
        return {};
    }
    return fmt::format("terminal rank {}{}\n", debugging->rank.value(),
                       debugging->is_asked ? ", the others write to their logs only" : "");
}

std::string python_text(const LaunchPlan& plan) {
    return plan.python_origin.empty()
               ? ""
               : fmt::format("python   {} ({})\n", plan.python, plan.python_origin);
}

std::string prepare_text(const LaunchPlan& plan) {
    if (plan.agent.prepare_command.empty()) {
        return {};
    }
    return fmt::format(
        "prepare  once {}: {}\n",
        plan.identity().prepares == rdzv::Prepares::Job ? "for the job" : "on each node",
        plan.agent.prepare_command);
}

std::string notify_text(const LaunchPlan& plan) {
    return plan.agent.notify ? fmt::format("notices  to {}\n", agent::name_of(*plan.agent.notify))
                             : "";
}

std::string warm_text(const LaunchPlan& plan) {
    constexpr std::uint64_t kMebibyte = std::uint64_t{1} << 20;
    if (plan.agent.warm.modules.empty() && !plan.agent.warm.learns) {
        return {};
    }
    if (!plan.agent.warm.program.empty()) {
        return fmt::format("standbys {}, once a worker has told that {} uses ddprun::run()\n",
                           plan.identity().slots, plan.agent.warm.program);
    }
    std::string text = fmt::format("standbys {}, each with ", plan.identity().slots);
    text += plan.agent.warm.learns ? std::string("what the first worker imports")
                                   : fmt::format("{}", fmt::join(plan.agent.warm.modules, ", "));
    text +=
        fmt::format("; with torch about {} MiB each", agent::kStandbyWithTorchBytes / kMebibyte);
    if (const std::optional<MemoryRoom> room = read_memory_room()) {
        text += fmt::format(", of {} MiB that are free", room->free / kMebibyte);
    }
    return text + "\n";
}

bool is_everywhere(const std::vector<agent::WorkerSpec>& workers, const Pair& entry) {
    return std::all_of(workers.begin(), workers.end(), [&entry](const agent::WorkerSpec& worker) {
        return std::find(worker.environment.begin(), worker.environment.end(), entry) !=
               worker.environment.end();
    });
}

}  // namespace

std::string dry_run_text(const LaunchPlan& plan, const agent::SavedProcessState& saved) {
    const std::vector<agent::WorkerSpec> workers = workers_of(plan, saved);
    std::string text = fmt::format(
        "nothing is started: --dry-run\n\njob      {}\nmeeting  {}\nlogs     {}\nworkers  {} on "
        "this node, contained by {}\n{}{}{}{}{}\nenvironment of each\n",
        plan.identity().job.value().empty() ? kRandom
                                            : std::string_view{plan.identity().job.value()},
        meeting_text(plan), plan.log_dir.empty() ? "none" : plan.log_dir, plan.identity().slots,
        containment_text(plan), python_text(plan), terminal_text(plan), prepare_text(plan),
        notify_text(plan), warm_text(plan));
    for (const Pair& entry : workers.front().environment) {
        if (is_everywhere(workers, entry)) {
            text += fmt::format("  {}={}\n", entry.first, shown(plan, entry));
        }
    }
    for (const agent::WorkerSpec& worker : workers) {
        text += fmt::format("\nlocal rank {}\n  command ", worker.local_rank.value());
        for (const std::string& word : worker.command) {
            text += " " + quoted(word);
        }
        text += "\n" + cpus_text(plan, worker);
        for (const Pair& entry : worker.environment) {
            if (!is_everywhere(workers, entry)) {
                text += fmt::format("  {}={}\n", entry.first, shown(plan, entry));
            }
        }
    }
    return text;
}

}  // namespace ddprun::launcher
