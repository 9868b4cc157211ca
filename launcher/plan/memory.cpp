// Checkpoints in memory: flags that mean something only together.

#include "launcher/plan/sections.hpp"
#include "launcher/plan/values.hpp"

namespace ddprun::launcher {

Result<void> take_memory(const CommandLine& line, const Surroundings& /*surroundings*/,
                         LaunchPlan& plan) {
    const std::optional<Given> replicas = line.value("memory-replicas");
    const rdzv::JobSettings& settings = plan.identity().settings;
    if (!replicas || settings.memory_replicas == 0) {
        return {};
    }
    if (!plan.agent.memory.bytes_max) {
        return bad_value(*replicas,
                         "it needs --memory-checkpoints SIZE, with room for two "
                         "checkpoints of this node and two of another one");
    }
    if (settings.max_nodes > 1) {
        plan.notes.push_back(
            "--memory-replicas: the copies of checkpoints travel between nodes with a MAC, but "
            "not encrypted; use it in a network where others may see the weights");
    }
    return {};
}

}  // namespace ddprun::launcher
