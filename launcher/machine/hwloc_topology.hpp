#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"
#include "launcher/surroundings/topology.hpp"

namespace ddprun::launcher {

/// The CPUs of this machine, or of the machine that hwloc's text `synthetic` describes, of which
/// those in `allowed` are allowed. The library hwloc is loaded for it, and unloaded: a ddprun that
/// binds nothing needs none. Fails with a line for the user.
[[nodiscard]] Result<Topology> read_topology(const std::string& synthetic,
                                             const std::vector<int>& allowed);

}  // namespace ddprun::launcher
