#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "tests/sim/driver.hpp"

namespace {

std::uint64_t current_seed = 0;

/// A failed check aborts; the seed must not be lost with it.
extern "C" void say_seed(int /*signal*/) {
    char text[64] = "ddprun-sim: aborted in seed ";
    std::size_t length = 28;
    char digits[24];
    std::size_t count = 0;
    std::uint64_t rest = current_seed;
    do {
        digits[count++] = static_cast<char>('0' + rest % 10);
        rest /= 10;
    } while (rest > 0);
    while (count > 0) {
        text[length++] = digits[--count];
    }
    text[length++] = '\n';
    const ssize_t written = ::write(2, text, length);
    ::_exit(written > 0 ? 134 : 135);
}

struct Totals {
    std::uint64_t seeds = 0;
    std::uint64_t failed = 0;
    std::uint64_t events = 0;
    std::uint64_t hash = 0;
};

void run_seed(std::uint64_t seed, bool is_traced, Totals& totals) {
    using ddprun::sim::SimResult;
    current_seed = seed;
    ddprun::sim::Simulation simulation(ddprun::sim::draw_options(seed), is_traced);
    const SimResult result = simulation.run();
    for (const std::string& line : result.trace) {
        fmt::print("{}\n", line);
    }
    totals.seeds += 1;
    totals.events += result.events;
    totals.hash = totals.hash * 1099511628211ULL ^ result.hash;
    if (is_traced) {
        fmt::print("seed {}: hash {:016x}, {} events, last verdict: {}\n", seed, result.hash,
                   result.events, result.verdict.empty() ? "none" : result.verdict);
    }
    if (result.violation.has_value()) {
        totals.failed += 1;
        fmt::print("seed {}: VIOLATION {}\n", seed, *result.violation);
        std::fflush(stdout);
    }
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app("Runs a coordinator and its agents under virtual time and random faults");
    std::uint64_t seeds = 1000;
    std::uint64_t first = 1;
    std::uint64_t one = 0;
    bool is_traced = false;
    app.add_option("--seeds", seeds, "how many seeds to run");
    app.add_option("--first-seed", first, "the first of them");
    CLI::Option* only = app.add_option("--seed", one, "run this one only");
    app.add_flag("--trace", is_traced, "print what happens");
    CLI11_PARSE(app, argc, argv);
    std::signal(SIGABRT, say_seed);
    if (only->count() > 0) {
        first = one;
        seeds = 1;
    }
    Totals totals;
    for (std::uint64_t seed = first; seed < first + seeds; ++seed) {
        run_seed(seed, is_traced, totals);
    }
    fmt::print("{} seeds, {} events, {} violations, hash {:016x}\n", totals.seeds, totals.events,
               totals.failed, totals.hash);
    return totals.failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
