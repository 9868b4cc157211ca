#pragma once

#include <string>

#include "base/result.hpp"

namespace ddprun::launcher {

/// Describes the run in `folder` as one JSON object (docs/bundle.schema.json): report, events,
/// stacks, ends of logs, what the workers are made of and what `ddpctl doctor` says of this
/// machine. For a run that is at work it adds the state and the stacks, which are taken now. A part
/// that does not exist is null. Environments and command lines are left out; the output of workers
/// is in it. Blocks as take_stacks() does.
[[nodiscard]] Result<std::string> bundle_of(const std::string& folder);

/// Writes `bundle` to `path`, in place of an older file, for this user's eyes only. A file in a
/// folder that this user may not write to is written itself: who has it open reads the bundle.
[[nodiscard]] Result<void> write_bundle(const std::string& path, const std::string& bundle);

}  // namespace ddprun::launcher
