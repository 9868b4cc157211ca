#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/limits.hpp"
#include "base/result.hpp"
#include "rendezvous/server/jobs.hpp"
#include "rendezvous/server/progress_watch.hpp"
#include "rendezvous/wire/handshake.hpp"

namespace ddprun::rdzv {

/// Status of `wanted`, or of all jobs if it is empty, as a StatusReply that fits into one frame.
/// Parts that do not fit are left out, and counted.
[[nodiscard]] std::string status_body(const JobId& wanted, const Jobs& jobs,
                                      const ProgressWatch& progress, const Limits& limits);

/// The same for HTTP: each job also with its `ranks`, the `slowest` of them, and `time`
/// (docs/events.md); a frame need not take it. The returned function makes the line about the
/// present state, on any thread.
[[nodiscard]] std::function<std::string()> status_text(const JobId& wanted, const Jobs& jobs,
                                                       const ProgressWatch& progress,
                                                       const Limits& limits);

/// About which job, or empty: about all, a connection asks (PeerRole::Control) that greeted with
/// `handshake`. Failure: `question` is no question, or about another job than it greeted for.
[[nodiscard]] Result<JobId> asked_job(const RendezvousHandshake& handshake,
                                      std::string_view question, const Limits& limits);

}  // namespace ddprun::rdzv
