#include "rendezvous/core/moments.hpp"

#include <algorithm>

#include "rendezvous/core/publish.hpp"
#include "rendezvous/core/run.hpp"
#include "rendezvous/core/step.hpp"

namespace ddprun::rdzv {

void hear_reached(Step& step, const Node& node, const Reached& message) {
    CurrentGeneration& current = step.run.current;
    for (const ReachedMoment& moment : message.moments) {
        MomentReached& reached = current.reached[moment.what];
        if (reached.is_estimated) {
            continue;
        }
        const bool is_rank = moment.last.value() >= 0 && moment.last.value() < node.info.slots;
        const Duration since_start = std::max(step.now - current.started_at, Duration::zero());
        const Instant at =
            step.now - std::clamp(Duration(moment.age), Duration::zero(), since_start);
        if (moment.is_estimated) {
            if (reached.there.empty()) {
                reached.is_estimated = true;
                reached.at = at;
                publish_moment(step, moment.what, reached);
            }
            continue;
        }
        if (!is_rank || !reached.there.insert(node.info.node).second) {
            continue;
        }
        if (reached.there.size() == 1 || at > reached.at) {
            reached.at = at;
            reached.last = current.rank_of(node.info.node, moment.last);
        }
        reached.step = reached.step ? reached.step : moment.step;
        if (reached.there.size() == current.places.size()) {
            publish_moment(step, moment.what, reached);
        }
    }
}

}  // namespace ddprun::rdzv
