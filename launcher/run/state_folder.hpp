#pragma once

#include <string>

#include "base/result.hpp"

namespace ddprun::launcher {

/// This user's folder for identities and daemon logs, /var/tmp/ddprun-<uid>: made with mode 0700 if
/// it is missing. On a local disk on purpose: locks and journals do not work on NFS. Fails
/// if it belongs to another user or others may write to it.
[[nodiscard]] Result<std::string> open_state_folder();

}  // namespace ddprun::launcher
