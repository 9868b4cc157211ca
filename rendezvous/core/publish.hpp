#pragma once

#include <vector>

#include "rendezvous/core/first_failure.hpp"
#include "rendezvous/core/moments.hpp"
#include "rendezvous/core/nodes.hpp"
#include "rendezvous/core/step.hpp"
#include "rendezvous/events/event.hpp"

/// What happens to the run, for those who watch it: docs/events.md has the events of a rendezvous.
/// None of them decides anything.
namespace ddprun::rdzv {

/// Of the whole job.
void publish(Step& step, EventKind kind, std::vector<EventField> fields = {});

/// Of one node, which `fields` need not name.
void publish(Step& step, EventKind kind, const Join& node, std::vector<EventField> fields = {});

/// A worker failed: when it happened, which may be a while ago.
void publish_failure(Step& step, const TimedFailure& failure);

/// A worker exited 0.
void publish_finished(Step& step, const Node& node, LocalRank local_rank);

/// All workers of the generation have come to it.
void publish_moment(Step& step, Moment what, const MomentReached& reached);

/// Its workers live and go nowhere, as far as their nodes see.
void publish_hang(Step& step, const HangSeen& seen);

/// All its nodes have got their places.
void publish_formed(Step& step, const std::string& why);

}  // namespace ddprun::rdzv
