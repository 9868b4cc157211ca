#include "agent/process/containment_refusal.hpp"

#include "agent/process/cgroup.hpp"
#include "agent/process/start_first_process.hpp"

namespace ddprun::agent {

std::string containment_refusal(ContainmentLevel level) {
    switch (level) {
        case ContainmentLevel::Cgroup: {
            Result<Cgroup> cgroup = Cgroup::make();
            if (!cgroup) {
                return cgroup.error().what;
            }
            cgroup->remove();
            return {};
        }
        case ContainmentLevel::PidNamespace: {
            const Result<void> tried = try_first_process();
            return tried ? std::string() : tried.error().what;
        }
        case ContainmentLevel::Keeper:
        case ContainmentLevel::Session:
            return {};
    }
    return {};
}

}  // namespace ddprun::agent
