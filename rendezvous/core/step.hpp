#pragma once

#include <string>

#include "rendezvous/core/coordinator.hpp"
#include "rendezvous/core/run.hpp"

/// Tools that every transition uses. The phases and their transitions have a header each; other
/// folders include none of them.
namespace ddprun::rdzv {

/// One call of Coordinator::step(): what it was given, what it may change, where effects go.
struct Step {
    const JobId& job;
    const CoordinatorOptions& options;
    Rng& rng;
    Instant now;
    Run& run;
    Effects& out;
};

void trace(Step& step, std::string text);
void note(Step& step, std::string text);  ///< an event of the summary, traced too
/// More is known by now of the newest event called `text`; one that has been dropped comes back.
void amend_note(Step& step, const std::string& text, const std::string& now);
/// Nothing is sent to a node that is cut off.
void send(Step& step, const Node& node, RendezvousMessage message);
/// The run goes into `next`. Every change of phase comes through here: which phase may follow which
/// is checked.
void become(Run& run, Phase next);
/// This step's change must survive the process; what a record misses, agents say again.
void write_behind(Step& step);
/// This step's change must be durable before anybody is told: what is sent from here on waits.
void await_record(Step& step);

}  // namespace ddprun::rdzv
