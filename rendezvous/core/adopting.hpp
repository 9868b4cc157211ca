#pragma once

#include "base/instant.hpp"
#include "base/limits.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::rdzv {

struct Run;
struct Step;

/// Nodes came back with workers of a generation that this daemon does not know: it has no record of
/// it, or only an older one. It decides nothing, and answers no node, until it can tell which
/// generation is the newest.
///
/// Reads: the joins that wait (Run::parked).
/// Changes: on the way in, all nodes go and have to join again. On the way out, the holders of the
/// newest generation are its members: token, settings, generation and budgets are what they say.
/// Leads to: Running, Forming, and through Running to Stopping if some did not come back.
struct Adopting {
    Instant not_before{};  ///< a lease: nodes that the last daemon fenced know it by then
    Instant until{};
};

/// True if `message` reports a generation that this run should know and does not.
[[nodiscard]] bool is_news_of_generation(const Run& run, const Join& message, const Limits& limits,
                                         Instant now);
/// Says in the log what a node says of its generation, if that cannot be.
void trace_implausible(Step& step, const Join& message);

/// All that were here have to join again; nothing changes if that is so already.
void enter_adopting(Step& step);
void adopt_if_possible(Step& step, const Adopting& adopting);
/// When adopt_if_possible() wants to be called.
[[nodiscard]] Instant deadline_of(const Adopting& adopting, Instant now);
/// This process was away: so much more time.
void prolong(Adopting& adopting, Duration by);

}  // namespace ddprun::rdzv
