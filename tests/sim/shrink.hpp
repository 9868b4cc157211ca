#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "tests/sim/driver.hpp"
#include "tests/sim/options.hpp"

namespace ddprun::sim {

struct Shrunk {
    SimOptions options;
    SimResult result;  ///< of these options, with its trace
    std::uint64_t runs = 0;
};

/// Makes a run that violates a property as simple as it can: fewer faults, one by one and in
/// halves, fewer nodes and slots, plain settings. The result violates the same property (the
/// letters before the colon), maybe in other words. Returns no value if `options` violate none.
[[nodiscard]] std::optional<Shrunk> shrink(const SimOptions& options);

/// The command line that runs `options` again.
[[nodiscard]] std::string command_line(const SimOptions& options, const std::string& bug);

}  // namespace ddprun::sim
