#pragma once

#include <string>
#include <vector>

namespace ddprun::agent {

/// The children of this process, adopted ones and dead ones that nobody has reaped included.
/// Complete as long as no other thread reaps.
[[nodiscard]] std::vector<int> own_children();

/// This process's open descriptors.
[[nodiscard]] std::vector<int> open_descriptors();

/// "1234 (python3, state D)", for people.
[[nodiscard]] std::string describe_process(int pid);

}  // namespace ddprun::agent
