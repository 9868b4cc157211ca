#pragma once

#include <cstdint>
#include <optional>

namespace ddprun::agent {

/// Bytes of the machine's memory that process `pid` has, what it shares included. None: it is gone.
[[nodiscard]] std::optional<std::uint64_t> resident_memory(int pid);

}  // namespace ddprun::agent
