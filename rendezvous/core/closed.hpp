#pragma once

#include <string>

#include "base/instant.hpp"
#include "base/limits.hpp"
#include "base/tagged.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::rdzv {

struct Run;
struct Step;
struct Stopping;

/// The run has its verdict; its nodes are told, and go. Every way in is here.
///
/// Changes: nothing but who is still connected. The verdict is recorded before anybody is told.
/// Leads to: nothing. A stranger who is not told the verdict opens a new run.
struct Closed {
    Verdict verdict;
    Instant at{};
};

/// Every rank has exited 0.
void close_succeeded(Step& step);
/// The first failure's code.
void close_failed(Step& step, const Stopping& stopping);
/// Restarted again and again at one training step.
void close_without_progress(Step& step, const Stopping& stopping);
/// --max-node-losses is used up.
void close_too_many_losses(Step& step, const Stopping& stopping);
/// The --prepare command failed: `text` says where, and how.
void close_unprepared(Step& step, std::string text, int exit_code);
/// The minimum stayed missing for the whole join timeout.
void close_incomplete(Step& step);
/// By the operator `by`.
void close_ended(Step& step, const std::string& by);
/// *Stopped*, with `text`, if no node is left and the run is open.
void close_if_deserted(Step& step, const char* text);

/// True if a node that joins gets the verdict: it was in the run, or the run was decided lately.
[[nodiscard]] bool is_answered_by_verdict(const Run& run, const Closed& closed, const Join& join,
                                          Instant now, Milliseconds kept);
/// The run is over and this late node is told so.
void answer_with_verdict(Step& step, ConnectionId connection, const Join& message);

}  // namespace ddprun::rdzv
