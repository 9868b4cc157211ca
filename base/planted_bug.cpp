#include "base/planted_bug.hpp"

namespace ddprun {

const std::vector<PlantedBugInfo>& planted_bugs() {
    static const std::vector<PlantedBugInfo> all = {
#define DDP_PLANTED_BUG_INFO(bug, name, what) {PlantedBug::bug, name, what},
        DDP_PLANTED_BUGS(DDP_PLANTED_BUG_INFO)
#undef DDP_PLANTED_BUG_INFO
    };
    return all;
}

std::optional<PlantedBug> planted_bug_named(std::string_view name) {
    for (const PlantedBugInfo& info : planted_bugs()) {
        if (info.name == name) {
            return info.bug;
        }
    }
    return std::nullopt;
}

}  // namespace ddprun
