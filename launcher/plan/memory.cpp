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
    if (plan.tls.is_on() && plan.tls.cert.empty()) {
        return bad_value(*replicas,
                         "with --tls-ca the copies of checkpoints are encrypted, too, and each "
                         "node shows its partner a certificate; give --tls-cert and --tls-key");
    }
    if (settings.max_nodes > 1 && !plan.tls.is_on()) {
        plan.notes.push_back(
            "--memory-replicas: the copies of checkpoints travel between nodes with a MAC, but "
            "not encrypted; give --tls-ca, --tls-cert and --tls-key, or use it in a network where "
            "others may see the weights");
    }
    return {};
}

}  // namespace ddprun::launcher
