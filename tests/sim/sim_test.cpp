// Goal: the decisions of coordinator and agents hold together under any order of events.
// Method: many small simulated runs (driver.hpp), each drawn from its seed and judged after every
// event. A violation names its seed: `ddprun-sim --seed N --trace` shows it again.

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/number_ranges.hpp"
#include "base/planted_bug.hpp"
#include "tests/sim/driver.hpp"
#include "tests/sim/forecast.hpp"
#include "tests/sim/knobs.hpp"
#include "tests/sim/shrink.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/places.hpp"

namespace ddprun::sim {

namespace {

double seconds_allowed() {
    const char* text = std::getenv("DDPRUN_SIM_SECONDS");
    return text != nullptr ? std::strtod(text, nullptr) : 10.0;
}

/// Lines of a file beside this one, without comments.
std::vector<std::string> lines_of(const std::string& name) {
    std::ifstream file(source_dir() + "/tests/sim/" + name);
    REQUIRE(file.is_open());
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) {
        if (!line.empty() && line.front() != '#') {
            lines.push_back(line);
        }
    }
    return lines;
}

/// Seeds from 1 until the time is over; every violation fails the test.
std::uint64_t run_for(double seconds, NodeRange nodes) {
    const auto began = std::chrono::steady_clock::now();
    std::uint64_t seed = 0;
    while (std::chrono::steady_clock::now() - began < std::chrono::duration<double>(seconds)) {
        ++seed;
        const SimResult result = Simulation(draw_options(seed, nodes), false).run();
        if (result.violation.has_value()) {
            FAIL_CHECK("seed " << seed << " of " << nodes.least << ":" << nodes.most
                               << " nodes: " << *result.violation);
        }
    }
    return seed;
}

}  // namespace

TEST_CASE("no seed violates a guarantee, and every run ends once faults stop") {
    const std::uint64_t small = run_for(seconds_allowed() * 0.8, {});
    const std::uint64_t large = run_for(seconds_allowed() * 0.2, {.least = 64, .most = 256});
    WARN(small << " seeds of 1 to 16 nodes, " << large << " of 64 to 256");
    CHECK(small > 0);
    CHECK(large > 0);
}

TEST_CASE("seeds that once showed a bug show none") {
    const std::vector<std::string> lines = lines_of("seeds.txt");
    for (const std::string& line : lines) {
        const SimResult result = Simulation(draw_options(std::stoull(line)), false).run();
        INFO("seed " << line);
        CHECK(result.violation.value_or("") == "");
    }
    CHECK(!lines.empty());
}

TEST_CASE("every planted bug is found by its recorded seed") {
    for (const std::string& line : lines_of("bugs.txt")) {
        std::istringstream words(line);
        std::string name;
        std::uint64_t seed = 0;
        words >> name >> seed;
        INFO("--bug " << name << " --seed " << seed);
        const std::optional<PlantedBug> bug = planted_bug_named(name);
        REQUIRE(bug.has_value());
        planted_bug = *bug;
        const SimResult with = Simulation(draw_options(seed), false).run();
        planted_bug = PlantedBug::None;
        const SimResult without = Simulation(draw_options(seed), false).run();
        CHECK(with.violation.has_value());
        CHECK(without.violation.value_or("") == "");
    }
}

TEST_CASE("the same seed gives the same trace") {
    for (std::uint64_t seed = 1; seed <= 100; ++seed) {
        const std::uint64_t once = Simulation(draw_options(seed), false).run().hash;
        const std::uint64_t again = Simulation(draw_options(seed), true).run().hash;
        CHECK(once == again);
    }
    CHECK(Simulation(draw_options(1), false).run().hash !=
          Simulation(draw_options(2), false).run().hash);
}

TEST_CASE("a fault that is left out changes no other") {
    SimOptions options = draw_options(3);
    options.faults_for = Milliseconds(60000);
    const std::vector<PlannedFault> all = plan_faults(options);
    REQUIRE(all.size() >= 3);
    options.kept_faults = {0, all.size() - 1};
    const std::vector<PlannedFault> kept = plan_faults(options);
    REQUIRE(kept.size() == 2);
    CHECK(kept.back().index == all.back().index);
    CHECK(kept.back().at == all.back().at);
    CHECK(kept.back().seed == all.back().seed);
}

TEST_CASE("changes to a seed's options are said and taken again") {
    const SimOptions drawn = draw_options(7);
    SimOptions options = drawn;
    REQUIRE(apply_changes(options, "nodes=3,delay-ms=7,grow=0").has_value());
    SimOptions again = drawn;
    REQUIRE(apply_changes(again, changes_of(options, drawn)).has_value());
    CHECK(changes_of(again, options).empty());
    CHECK(again.nodes == 3);
    CHECK(again.delay_max == Milliseconds(7));
    CHECK_FALSE(apply_changes(again, "nodes").has_value());
    CHECK_FALSE(apply_changes(again, "colour=3").has_value());
    CHECK(number_ranges(parse_indexes("2,5-9,11").value()) == "2,5-9,11");
    CHECK_FALSE(parse_indexes("9-5").has_value());
}

TEST_CASE("a run that violates nothing cannot be shrunk") {
    CHECK_FALSE(shrink(draw_options(1)).has_value());
}

TEST_CASE("a forecast spends all of the time, and spares save the wait for repairs") {
    ForecastOptions options;
    options.nodes = 16;
    options.spares = 4;
    options.mtbf = std::chrono::hours(2);
    options.repair = std::chrono::hours(1);
    options.checkpoint_every = std::chrono::minutes(10);
    options.checkpoint_takes = std::chrono::seconds(5);
    options.restart_takes = std::chrono::seconds(30);
    options.stop_takes = std::chrono::seconds(1);
    options.lasts = std::chrono::hours(24 * 5);
    options.lease = std::chrono::seconds(1);
    const Forecast with = forecast(options);
    const Duration sum = with.useful + with.noticing + with.forming + with.waiting + with.starting +
                         with.lost_work + with.checkpoints + with.smaller;
    CHECK(std::chrono::abs(sum - with.total) < std::chrono::seconds(1));
    CHECK(with.failures > 30);
    CHECK(with.restarts >= with.failures / 2);
    CHECK(with.noticing_max <= std::chrono::milliseconds(1100));
    options.spares = 0;
    const Forecast without = forecast(options);
    CHECK(without.waiting > std::chrono::hours(10));
    CHECK(without.goodput() < with.goodput());
    CHECK(parse_duration("1.5h").value() == std::chrono::minutes(90));
    CHECK_FALSE(parse_duration("6 parsecs").has_value());
}

}  // namespace ddprun::sim
