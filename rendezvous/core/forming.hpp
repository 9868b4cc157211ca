#pragma once

#include <optional>
#include <string>

#include "base/instant.hpp"

namespace ddprun::rdzv {

struct Run;
struct Step;

/// Too few nodes are ready, or the patience for more has not ended, or a back-off has not. The run
/// has no member in this phase.
///
/// Reads: the ready and the suspected nodes, quarantine, the last generation's places.
/// Changes: its own deadlines. On the way in, members become ready. On the way out, those chosen
/// become members of a new generation, which is recorded before any node is told.
/// Leads to: Running (form_if_possible), Closed (give_up_forming, or no node is left), Adopting (a
/// join).
struct Forming {
    Instant since{};
    Instant give_up_at{};                 ///< while the minimum is missing
    std::optional<Instant> patience_end;  ///< set when the minimum was reached, first generation
    std::optional<Instant> not_before;    ///< back-off after a burst of restarts
    std::string why;                      ///< of the generation to come
};

/// A new run, or one whose last generation has stopped, waits for the next one; `why` is told to
/// those who will be in it.
void enter_forming(Step& step, std::string why);
/// Starts the next generation when its time has come.
void form_if_possible(Step& step, Forming& forming);
/// An operator's hold is over, by itself or not: what is missing has its whole time to come.
void end_hold(Step& step);
/// The verdict *incomplete*, when the minimum stayed missing.
void give_up_forming(Step& step, const Forming& forming);
/// When one of both wants to be called; none while only an input or a lease can change anything.
[[nodiscard]] std::optional<Instant> deadline_of(const Run& run, const Forming& forming,
                                                 Instant now);

}  // namespace ddprun::rdzv
