#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/trimmed.hpp"
#include "launcher/plan/cores.hpp"
#include "launcher/plan/gpus.hpp"
#include "launcher/plan/placement.hpp"
#include "launcher/plan/sections.hpp"
#include "launcher/plan/values.hpp"

namespace ddprun::launcher {

namespace {

/// Without a setting every worker would start a thread for each core of the machine.
void share_out_threads(const Surroundings& surroundings, LaunchPlan& plan) {
    if (plan.identity().slots == 1 || surroundings.variable("OMP_NUM_THREADS")) {
        return;
    }
    const int cores = usable_cores(surroundings);
    plan.agent.supervisor.omp_num_threads = std::max(1, cores / plan.identity().slots);
    plan.notes.push_back(
        fmt::format("OMP_NUM_THREADS={} for each worker: {} core{} for {} workers; set it to have "
                    "another",
                    plan.agent.supervisor.omp_num_threads, cores, cores == 1 ? "" : "s",
                    plan.identity().slots));
}

/// As torchrun does it: the entry of CUDA_VISIBLE_DEVICES, whatever it is, else the number.
Result<void> give_one_device_each(const Surroundings& surroundings, LaunchPlan& plan) {
    const std::optional<std::string> list = surroundings.variable("CUDA_VISIBLE_DEVICES");
    const std::vector<std::string_view> entries =
        list ? split(*list, ',') : std::vector<std::string_view>{};
    if (list && entries.size() < plan.agent.supervisor.placement.size()) {
        return Error{ErrorCode::InvalidArgument,
                     fmt::format("--virtual-local-rank: CUDA_VISIBLE_DEVICES={} has {} entr{}, but "
                                 "{} workers need one each; list more devices or start fewer "
                                 "workers",
                                 *list, entries.size(), entries.size() == 1 ? "y" : "ies",
                                 plan.identity().slots)};
    }
    for (std::size_t i = 0; i < plan.agent.supervisor.placement.size(); ++i) {
        plan.agent.supervisor.placement[i].only_device =
            list ? std::string{trimmed(entries[i])} : fmt::format("{}", i);
    }
    return {};
}

Result<void> bind_to_cpus(const Given& given, const Surroundings& surroundings, LaunchPlan& plan) {
    const std::optional<BindingMode> mode = binding_mode(given.value);
    if (!mode) {
        return bad_value(given, "must be node, socket, exclusive or core-complex");
    }
    const Result<Topology> topology = surroundings.topology();
    if (!topology) {
        return bad_value(given, topology.error().what);
    }
    const GpuSight gpus = see_gpus(surroundings);
    const std::vector<int> gpu_nodes =
        gpus.is_evident ? nodes_of(gpus, surroundings) : std::vector<int>{};
    const std::vector<int> places = nodes_of_places(gpu_nodes, plan.identity().slots, *topology);
    if (places.empty()) {
        return bad_value(given, "hwloc tells no CPU that this process may use");
    }
    Result<std::vector<std::vector<int>>> bound =
        bind_workers(*mode, *topology, places, plan.identity().slots);
    if (!bound) {
        return bad_value(given, bound.error().what);
    }
    for (std::size_t i = 0; i < bound->size(); ++i) {
        plan.agent.supervisor.placement[i].cpus = std::move((*bound)[i]);
        plan.agent.supervisor.placement[i].numa_node = places[i];
    }
    return {};
}

}  // namespace

Result<void> take_placement(const CommandLine& line, const Surroundings& surroundings,
                            LaunchPlan& plan) {
    share_out_threads(surroundings, plan);
    plan.agent.supervisor.awaits_gpu_memory = may_see_nvidia_gpus(surroundings);
    const std::optional<Given> binding = line.value("numa-binding");
    const bool is_binding = binding && !binding->value.empty();
    if (!is_binding && !line.is_on("virtual-local-rank")) {
        return {};
    }
    plan.agent.supervisor.placement.resize(static_cast<std::size_t>(plan.identity().slots));
    if (line.is_on("virtual-local-rank")) {
        if (Result<void> given = give_one_device_each(surroundings, plan); !given) {
            return given;
        }
    }
    return is_binding ? bind_to_cpus(*binding, surroundings, plan) : Result<void>{};
}

}  // namespace ddprun::launcher
