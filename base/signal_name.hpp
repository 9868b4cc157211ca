#pragma once

#include <string>

namespace ddprun {

/// "SIGTERM"; "signal 61" for a number without a name.
[[nodiscard]] std::string signal_name(int signal);

}  // namespace ddprun
