#pragma once

#include <vector>

#include "rendezvous/events/event.hpp"
#include "rendezvous/wire/messages.hpp"

/// What events say of what a rendezvous and its agents tell each other. Pure.
namespace ddprun::rdzv {

/// How a worker ended and what is left of it; what it said last is an event of its own.
[[nodiscard]] std::vector<EventField> fields_of(const Evidence& evidence);
[[nodiscard]] std::vector<EventField> fields_of(const Stop& stop);
[[nodiscard]] std::vector<EventField> fields_of(const Verdict& verdict);

/// What node and rendezvous tell of a hang that is only spoken of.
[[nodiscard]] Event hang_event(Instant at, Generation generation, const HangSeen& seen);

}  // namespace ddprun::rdzv
