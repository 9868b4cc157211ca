#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "tests/sim/options.hpp"

namespace ddprun::sim {

/// One number of SimOptions by its name, so that a run can be told apart from what its seed drew,
/// and made simpler.
struct Knob {
    std::string_view name;
    std::int64_t (*get)(const SimOptions&);
    void (*set)(SimOptions&, std::int64_t);
    std::int64_t simplest = 0;  ///< what the shrinker tries first
};

[[nodiscard]] const std::vector<Knob>& knobs();

/// Applies "name=value,name=value". Failure is InvalidArgument and names the part.
[[nodiscard]] Result<void> apply_changes(SimOptions& options, const std::string& changes);

/// The changes to the options of the seed that give these options; empty if none are needed.
[[nodiscard]] std::string changes_of(const SimOptions& options, const SimOptions& drawn);

/// Reads the text that number_ranges() writes, "2,5-9". Failure is InvalidArgument.
[[nodiscard]] Result<std::vector<std::size_t>> parse_indexes(const std::string& text);

}  // namespace ddprun::sim
