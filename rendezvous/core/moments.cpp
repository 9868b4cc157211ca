#include "rendezvous/core/moments.hpp"

#include <algorithm>

#include "rendezvous/core/publish.hpp"
#include "rendezvous/core/run.hpp"
#include "rendezvous/core/step.hpp"

namespace ddprun::rdzv {

namespace {

/// Nodes say how long ago it was, and messages take their time: no moment is told to be before one
/// that comes before it.
void put_in_order(MomentsReached& moments, Moment what) {
    for (const auto& [earlier, reached] : moments) {
        if (earlier < what) {
            moments[what].at = std::max(moments[what].at, reached.at);
        }
    }
}

}  // namespace

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
                put_in_order(current.reached, moment.what);
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
            put_in_order(current.reached, moment.what);
            publish_moment(step, moment.what, reached);
        }
    }
}

void hear_saves(Step& step, const Node& node, const SavesSeen& seen) {
    CurrentGeneration& current = step.run.current;
    if (seen.local_rank.value() < 0 || seen.local_rank.value() >= node.info.slots) {
        return;
    }
    const Rank rank = current.rank_of(node.info.node, seen.local_rank);
    SavesSeen& before = current.saves[node.info.node];
    publish_saves(step, rank, before, seen);
    before = seen;
}

}  // namespace ddprun::rdzv
