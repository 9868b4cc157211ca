#pragma once

#include <vector>

#include "rendezvous/events/event.hpp"
#include "rendezvous/wire/messages.hpp"

/// Turns messages between a rendezvous and its agents into the fields of events. Pure.
namespace ddprun::rdzv {

/// How a worker ended and what is left of it; what it said last is an event of its own.
[[nodiscard]] std::vector<EventField> fields_of(const Evidence& evidence);
[[nodiscard]] std::vector<EventField> fields_of(const Stop& stop);
[[nodiscard]] std::vector<EventField> fields_of(const Verdict& verdict);

/// The event of a node or rendezvous for a hang that is only reported.
[[nodiscard]] Event hang_event(Instant at, Generation generation, const HangSeen& seen);

}  // namespace ddprun::rdzv
