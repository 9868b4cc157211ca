#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "agent/contract/effects.hpp"
#include "agent/output/worker_output.hpp"
#include "agent/process/keeper_protocol.hpp"
#include "rendezvous/events/time_use.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::agent {

/// Returns the evidence of a worker's end that is known at once: its status and its kernel note.
[[nodiscard]] rdzv::Evidence evidence_of(const WorkerEnd& end, const WorkerSpec& spec,
                                         std::optional<std::uint64_t> progress,
                                         std::string kernel_note);

/// A closed run on the console, in `<log_root>/report.json` and, if it failed, in `error_file`.
/// Empty paths: not there. An undisturbed success says nothing. `node` is this one, whose workers'
/// lines `output` may have shown already. Does not block.
void show_verdict(const rdzv::Verdict& verdict, const std::string& program,
                  const std::string& log_root, const std::string& error_file,
                  const rdzv::TimeUse& time_use, const NodeId& node, WorkerOutput& output);

}  // namespace ddprun::agent
