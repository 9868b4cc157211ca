#pragma once

#include <string>

#include "base/os/unique_fd.hpp"
#include "base/result.hpp"

namespace ddprun::agent {

/// The name of the socket in the folder of a run on which its ddprun answers (docs/events.md).
inline constexpr const char* kRunSocketName = "ddprun.sock";

/// Binds the socket of the run in `folder`, which this process holds, in place of one that an
/// earlier ddprun left there, and listens: 0600, non-blocking. However long the path is. Failure
/// names the path, and leaves none.
[[nodiscard]] Result<UniqueFd> listen_in_run(const std::string& folder);

/// Connects to it. NotFound: there is none; Unreachable: no process answers there.
[[nodiscard]] Result<UniqueFd> connect_to_run(const std::string& folder);

}  // namespace ddprun::agent
