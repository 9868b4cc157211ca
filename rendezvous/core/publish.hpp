#pragma once

#include <vector>

#include "rendezvous/core/first_failure.hpp"
#include "rendezvous/core/moments.hpp"
#include "rendezvous/core/nodes.hpp"
#include "rendezvous/core/step.hpp"
#include "rendezvous/events/event.hpp"

/// Events of the run, for those who watch it: docs/events.md lists the events of a rendezvous.
/// Events decide nothing.
namespace ddprun::rdzv {

/// Publishes an event of the whole job.
void publish(Step& step, EventKind kind, std::vector<EventField> fields = {});

/// Publishes an event of one node, which `fields` need not name.
void publish(Step& step, EventKind kind, const Join& node, std::vector<EventField> fields = {});

/// A worker failed: when it happened, which may be a while ago.
void publish_failure(Step& step, const TimedFailure& failure);

/// A worker exited 0.
void publish_finished(Step& step, const Node& node, LocalRank local_rank);

/// All workers of the generation have come to it.
void publish_moment(Step& step, Moment what, const MomentReached& reached);

/// Its workers live and go nowhere, as far as their nodes see.
void publish_hang(Step& step, const HangSeen& seen);

/// The saves that `rank` leads, last published as `before`, as far as they are news.
void publish_saves(Step& step, Rank rank, const SavesSeen& before, const SavesSeen& seen);

/// All its nodes have got their places.
void publish_formed(Step& step, const std::string& why);

}  // namespace ddprun::rdzv
