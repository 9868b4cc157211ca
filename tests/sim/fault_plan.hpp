#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/instant.hpp"
#include "tests/sim/options.hpp"

namespace ddprun::sim {

enum class FaultNeeds { Nothing, Network, Daemons };

struct FaultKindInfo {
    FaultKind kind = FaultKind::WorkerCrash;
    std::string_view name;
    int weight_max = 1;
    FaultNeeds needs = FaultNeeds::Nothing;
    std::string_view what;
};

/// In the order of the enumerators.
[[nodiscard]] const std::array<FaultKindInfo, kFaultKinds>& fault_kinds();

/// One thing that goes wrong, decided before the run: leaving one out changes no other.
struct PlannedFault {
    std::size_t index = 0;  ///< in the whole plan of the seed
    Instant at{};
    FaultKind kind = FaultKind::WorkerCrash;
    std::uint64_t seed = 0;  ///< whom it hits, and how
};

/// In the order of time. Only what `options` has kept.
[[nodiscard]] std::vector<PlannedFault> plan_faults(const SimOptions& options);

}  // namespace ddprun::sim
