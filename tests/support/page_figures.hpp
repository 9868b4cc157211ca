#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>

#include "base/instant.hpp"
#include "tests/support/catch.hpp"
#include "worker_runtime/contract/worker_page.hpp"

namespace ddprun::test {

/// One worker's figures, as worker_runtime/contract/README.md lays them out. Times of 0: not told.
struct PageFigures {
    std::int64_t main_ns = 0;
    std::int64_t group_ready_ns = 0;
    std::int64_t resumed_ns = 0;
    std::int64_t first_step_ns = 0;
    std::uint64_t samples = 0;
    double loss = 0;
    std::uint64_t first_step = 0;  ///< kNoProgress: not told
};

[[nodiscard]] inline PageFigures figures_on_page(int file, int slots, int local_rank) {
    PageFigures figures;
    const auto offset = static_cast<off_t>(64 + 128 * slots + 64 * local_rank);
    REQUIRE(pread(file, &figures, sizeof(figures), offset) == sizeof(figures));
    return figures;
}

/// `instant` as the page has it.
[[nodiscard]] inline std::int64_t on_page(Instant instant) {
    return std::chrono::nanoseconds(instant.time_since_epoch()).count();
}

}  // namespace ddprun::test
