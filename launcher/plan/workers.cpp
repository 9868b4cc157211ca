// How many workers this node has.

#include <cstdint>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "base/limits.hpp"
#include "launcher/plan/gpus.hpp"
#include "launcher/plan/sections.hpp"
#include "launcher/plan/values.hpp"

namespace ddprun::launcher {

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
    plan.identity().slots = slots;
    return {};
}

Result<void> check_store_room(const CommandLine& /*line*/, const Surroundings& /*surroundings*/,
                              LaunchPlan& plan) {
    if (plan.agent.supervisor.is_store_of_rank_0) {
        return {};
    }
    const auto slots = static_cast<std::uint64_t>(plan.identity().slots);
    const auto fewest = static_cast<std::uint64_t>(plan.identity().settings.min_nodes) * slots;
    const auto workers = static_cast<std::uint64_t>(plan.identity().settings.max_nodes) * slots;
    const Limits limits;
    const std::size_t most =
        plan.agent.supervisor.relays_store ? limits.store_relayed_max : limits.store_clients_max;
    if (fewest > most) {
        return Error{
            ErrorCode::InvalidArgument,
            fmt::format(
                "--nnodes {} with --nproc-per-node {}: {} workers are more than the {} that the "
                "workers' store serves {}",
                plan.identity().settings.min_nodes, plan.identity().slots, fewest, most,
                plan.agent.supervisor.relays_store
                    ? "behind relays; start fewer"
                    : "directly; add --store-relay on, on every node: then a node's workers "
                      "share one connection")};
    }
    if (workers > most) {
        plan.warnings.push_back(fmt::format(
            "--nnodes {}:{} with --nproc-per-node {}: up to {} workers, and the workers' store "
            "serves {} {}",
            plan.identity().settings.min_nodes, plan.identity().settings.max_nodes,
            plan.identity().slots, workers, most,
            plan.agent.supervisor.relays_store
                ? "behind relays, no more"
                : "directly; for more add --store-relay on, on every node"));
    }
    return {};
}

}  // namespace ddprun::launcher
