// Goal: the decisions of coordinator and agents hold together under any order of events.
// Method: many small simulated runs (driver.hpp), each drawn from its seed and judged after every
// event. A violation names its seed: `ddprun-sim --seed N --trace` shows it again.

#include <cstdint>
#include <fstream>
#include <string>

#include "tests/sim/driver.hpp"
#include "tests/support/catch.hpp"

namespace ddprun::sim {

TEST_CASE("no seed violates a guarantee, and every run ends once faults stop") {
    constexpr std::uint64_t kSeeds = 500;
    for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
        Simulation simulation(draw_options(seed), false);
        const SimResult result = simulation.run();
        if (result.violation.has_value()) {
            FAIL_CHECK("seed " << seed << ": " << *result.violation);
        }
    }
}

TEST_CASE("seeds that once showed a bug show none") {
    std::ifstream file(DDPRUN_SOURCE_DIR "/tests/sim/seeds.txt");
    REQUIRE(file.is_open());
    int count = 0;
    for (std::string line; std::getline(file, line);) {
        if (line.empty() || line.front() == '#') {
            continue;
        }
        const std::uint64_t seed = std::stoull(line);
        const SimResult result = Simulation(draw_options(seed), false).run();
        INFO("seed " << line);
        CHECK(result.violation.value_or("") == "");
        ++count;
    }
    CHECK(count > 0);
}

TEST_CASE("the same seed gives the same trace") {
    for (std::uint64_t seed = 1; seed <= 25; ++seed) {
        const std::uint64_t once = Simulation(draw_options(seed), false).run().hash;
        const std::uint64_t again = Simulation(draw_options(seed), true).run().hash;
        CHECK(once == again);
    }
    CHECK(Simulation(draw_options(1), false).run().hash !=
          Simulation(draw_options(2), false).run().hash);
}

}  // namespace ddprun::sim
