#include "agent/supervise/worker_group.hpp"

#include <algorithm>
#include <cstddef>

#include <fmt/format.h>

#include "agent/supervise/worker_command.hpp"
#include "base/printable.hpp"
#include "worker_runtime/contract/exit_codes.hpp"
#include "worker_runtime/contract/worker_environment.hpp"

namespace ddprun::agent {

WorkerGroup::WorkerGroup(rdzv::Start row, int slots)
    : fates(static_cast<std::size_t>(slots)), row_(std::move(row)) {}

bool WorkerGroup::has_all_exited() const {
    return std::none_of(fates.begin(), fates.end(), is_running);
}

bool WorkerGroup::awaits_words() const {
    return std::any_of(fates.begin(), fates.end(), [](const WorkerFate& fate) {
        return std::visit(
            [](const auto& one) {
                if constexpr (requires { one.words; }) {
                    return one.words == Words::Awaited;
                } else {
                    return false;
                }
            },
            fate);
    });
}

std::vector<LocalRank> WorkerGroup::running() const {
    std::vector<LocalRank> found;
    for (std::size_t i = 0; i < fates.size(); ++i) {
        if (is_running(fates[i])) {
            found.emplace_back(static_cast<int>(i));
        }
    }
    return found;
}

std::string WorkerGroup::running_text() const {
    std::string list;
    const std::vector<LocalRank> ranks = running();
    for (const LocalRank rank : ranks) {
        list += fmt::format("{}{}", list.empty() ? "" : ", ", rank.value());
    }
    return fmt::format("local rank{} {}", ranks.size() == 1 ? "" : "s", list);
}

std::string WorkerGroup::saved_text() const {
    std::optional<std::uint64_t> step;
    std::string place;
    bool is_newer = false;
    for (const WorkerFate& fate : fates) {
        const Left* left = std::get_if<Left>(&fate);
        if (left == nullptr || left->exit_code != kExitDrained || !left->step ||
            left->saved.place.empty()) {
            return {};
        }
        step = std::min(step.value_or(*left->step), *left->step);
        place = printable(left->saved.place, std::string::npos);
        is_newer |= left->saved.is_newer;
    }
    return is_newer
               ? fmt::format("saved step {} in {}; the same command goes on from it", *step, place)
               : fmt::format(
                     "left after step {}; the same command goes on from the newest "
                     "checkpoint in {}",
                     *step, place);
}

void WorkerGroup::await_words(LocalRank local_rank) {
    const auto await = [](auto& fate) {
        if constexpr (requires { fate.words; }) {
            fate.words = Words::Awaited;
        }
    };
    std::visit(await, fates.at(static_cast<std::size_t>(local_rank.value())));
}

rdzv::Evidence* WorkerGroup::settle_words(LocalRank local_rank) {
    const auto settle = [](auto& fate) -> rdzv::Evidence* {
        if constexpr (requires { fate.words; }) {
            const bool is_awaited = std::exchange(fate.words, Words::Settled) == Words::Awaited;
            return is_awaited ? &fate.evidence : nullptr;
        } else {
            return nullptr;
        }
    };
    return std::visit(settle, fates.at(static_cast<std::size_t>(local_rank.value())));
}

std::optional<Instant> WorkerGroup::next_deadline() const {
    std::optional<Instant> result;
    if (const WorkersStop* stop = std::get_if<WorkersStop>(&phase)) {
        result = stop->kill_at;
    }
    for (const WorkerFate& fate : fates) {
        if (const HeldBack* held = std::get_if<HeldBack>(&fate)) {
            result = std::min(result.value_or(held->judged_at), held->judged_at);
        }
    }
    return result;
}

std::string worker_log_dir(const std::string& log_dir, Generation generation,
                           LocalRank local_rank) {
    if (log_dir.empty()) {
        return {};
    }
    return fmt::format("{}/attempt_{}/{}", log_dir, generation.value() - 1, local_rank.value());
}

std::string stacks_dir(const std::string& log_dir, Generation generation) {
    return log_dir.empty() ? std::string()
                           : fmt::format("{}/attempt_{}/stacks", log_dir, generation.value() - 1);
}

namespace {

/// NCCL takes a bare name for the beginning of many: with "=" it is that one. Gloo knows whole
/// names only.
void add_interface(Environment& environment, const SupervisorOptions& options) {
    if (!options.interface || options.interface->name.empty()) {
        return;
    }
    const InterfaceChoice& choice = *options.interface;
    if (choice.sets_nccl) {
        environment.emplace_back("NCCL_SOCKET_IFNAME", "=" + choice.name);
    }
    if (choice.sets_gloo) {
        environment.emplace_back("GLOO_SOCKET_IFNAME", choice.name);
    }
}

/// Adds the variables that the user wants trackers to find, and has not set.
void add_for_trackers(Environment& environment, const SupervisorOptions& options) {
    environment.insert(environment.end(), options.tracker_environment.begin(),
                       options.tracker_environment.end());
}

}  // namespace

StartWorkers start_of(const WorkerGroup& group, const SupervisorOptions& options,
                      const StoreAddress& store, const std::string& local_address) {
    const rdzv::Start& row = group.row();
    const int slots = options.identity.slots;
    StartWorkers start{.generation = row.generation,
                       .base_rank = Rank(row.base_rank),
                       .world_size = row.world_size,
                       .publish_until = group.publish_until};
    WorkerPlace place{
        .job = options.identity.job,
        .tracked_run = options.tracked_run,
        .node = options.identity.node,
        .generation = row.generation,
        .world_size = row.world_size,
        // An older rendezvous does not send it.
        .target_world_size = std::max(row.target_world_size, row.world_size),
        .local_world_size = slots,
        .group_rank = row.group_rank,
        .group_world_size = row.group_world_size,
        .memory_partner = row.memory_partner,
        .role_rank = 0,
        .role_world_size = row.role_world_size,
        .role = options.identity.role,
        .store = store,
        .is_store_of_rank_0 = options.is_store_of_rank_0,
        .local_address = local_address,
        .start_reason = row.why,
        .restart_count = row.restart_count,
        .max_restarts = row.max_restarts,
        .signals_to_handle = options.signals_to_handle,
        .sets_nccl_async_error_handling = options.sets_nccl_async_error_handling,
        .omp_num_threads = options.omp_num_threads,
        .preload = options.preload,
        .python_path = options.python_path,
    };
    for (int i = 0; i < slots; ++i) {
        const LocalRank local_rank(i);
        WorkerSpec worker;
        worker.local_rank = local_rank;
        worker.command = worker_command(options.command, local_rank);
        worker.log_dir = worker_log_dir(options.log_dir, row.generation, local_rank);
        place.rank = Rank(row.base_rank + i);
        place.local_rank = local_rank;
        place.role_rank = row.role_base_rank + i;
        place.error_file = worker.log_dir.empty() ? "" : worker.log_dir + "/error.json";
        if (static_cast<std::size_t>(i) < options.placement.size()) {
            const WorkerPlacement& placement = options.placement[static_cast<std::size_t>(i)];
            place.only_device = placement.only_device;
            worker.cpus = placement.cpus;
        }
        worker.environment = worker_environment(place);
        add_interface(worker.environment, options);
        add_for_trackers(worker.environment, options);
        worker.is_bystander = options.debugging && place.rank != options.debugging->rank;
        if (worker.is_bystander) {
            worker.environment.emplace_back("PYTHONBREAKPOINT", "0");
        }
        start.workers.push_back(std::move(worker));
    }
    return start;
}

Environment environment_of_prepare(const SupervisorOptions& options,
                                   const std::string& local_address) {
    namespace var = worker_variable;
    Environment environment = {
        {std::string(var::kRunId.key), options.identity.job.value()},
        {std::string(var::kTrackedRun.key), options.tracked_run},
        {std::string(var::kNodeId.key), options.identity.node.value()},
        {std::string(var::kLocalAddress.key), local_address},
        {std::string(var::kRoleName.key), options.identity.role},
        {std::string(var::kLocalWorldSize.key), std::to_string(options.identity.slots)},
    };
    if (options.omp_num_threads > 0) {
        environment.emplace_back(var::kOmpNumThreads.key, std::to_string(options.omp_num_threads));
    }
    add_interface(environment, options);
    add_for_trackers(environment, options);
    return environment;
}

}  // namespace ddprun::agent
