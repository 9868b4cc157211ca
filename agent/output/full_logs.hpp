#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ddprun::agent {

/// The numbers N of the files `<path>.N`, ascending: the full ones that were set aside when the log
/// `path` began anew, the oldest first.
[[nodiscard]] std::vector<std::uint64_t> full_logs_of(const std::string& path);

}  // namespace ddprun::agent
