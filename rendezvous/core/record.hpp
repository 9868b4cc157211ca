#pragma once

#include <memory>
#include <string>

#include "base/instant.hpp"
#include "base/limits.hpp"
#include "base/tagged.hpp"
#include "rendezvous/core/run.hpp"
#include "rendezvous/wire/run_record.hpp"

/// Makes the record of a run, and a run from its record, which survives the deciding process.
namespace ddprun::rdzv {

[[nodiscard]] RunRecord record_of(const JobId& job, const Run& run, Instant now);
/// Empty if `record` makes a run.
[[nodiscard]] std::string flaw_of(const RunRecord& record);
[[nodiscard]] std::unique_ptr<Run> run_of(const RunRecord& record, const Limits& limits,
                                          Instant now);

}  // namespace ddprun::rdzv
