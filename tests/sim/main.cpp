#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "base/planted_bug.hpp"
#include "base/probe.hpp"
#include "tests/sim/driver.hpp"
#include "tests/sim/fault_plan.hpp"
#include "tests/sim/forecast.hpp"
#include "tests/sim/knobs.hpp"
#include "tests/sim/shrink.hpp"

namespace {

using ddprun::Duration;
using ddprun::Result;
namespace sim = ddprun::sim;

constexpr const char* kDescription =
    "Runs the rendezvous and its agents on virtual time.\n\n"
    "  ddprun-sim --seeds N [--first-seed S]   random runs with random faults, judged\n"
    "  ddprun-sim --seed N [--trace|--shrink]  one of them: what happens; as little as shows it\n"
    "  ddprun-sim --nodes N --mtbf 6h …        what a job of yours would lose to failures\n";

constexpr const char* kForecastNotes =
    "The forecast runs the real coordinator and one real supervisor per node; messages take 0.3 "
    "ms, "
    "a record in the journal 5 ms. While all is well nothing is simulated: time jumps to the next "
    "failure or repair, a beat before it, so that every failure is noticed as it would be. "
    "Training "
    "itself, checkpoints and the start of workers are reckoned, not simulated.";

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

struct Arguments {
    std::uint64_t seeds = 1000;
    std::uint64_t first_seed = 1;
    std::uint64_t seed = 0;
    bool is_one = false;
    bool is_traced = false;
    bool is_shrunk = false;
    bool stops_at_first = false;
    double seconds = 0;
    std::uint64_t hunted = 0;
    std::string bug;
    std::string changes;
    std::string kept;
    bool has_kept = false;
    std::string range;
    std::vector<std::string> without;
    bool is_json = false;
    bool lists_unreached = false;
    sim::ForecastOptions forecast;
    std::string mtbf, repair, every, takes, restart, stop, lasts, lease;
};

[[noreturn]] void fail(const std::string& text) {
    fmt::print(stderr, "ddprun-sim: {}\n", text);
    std::exit(2);
}

template <typename T>
T taken(const Result<T>& result) {
    if (!result.has_value()) {
        fail(result.error().what);
    }
    return result.value();
}

sim::NodeRange range_of(const std::string& text) {
    sim::NodeRange range;
    if (text.empty()) {
        return range;
    }
    char rest = 0;
    if (std::sscanf(text.c_str(), "%d:%d%c", &range.least, &range.most, &rest) != 2 ||
        range.least < 1 || range.most < range.least || range.most > 16384) {
        fail(fmt::format("--nodes-between {}: it must be LEAST:MOST, 1 to 16384", text));
    }
    return range;
}

sim::SimOptions options_of(const Arguments& arguments, std::uint64_t seed) {
    sim::SimOptions options = sim::draw_options(seed, range_of(arguments.range));
    const Result<void> changed = sim::apply_changes(options, arguments.changes);
    if (!changed.has_value()) {
        fail(changed.error().what);
    }
    if (arguments.has_kept) {
        options.kept_faults = taken(sim::parse_indexes(arguments.kept));
    }
    for (const std::string& name : arguments.without) {
        const auto& kinds = sim::fault_kinds();
        const auto found = std::find_if(kinds.begin(), kinds.end(),
                                        [&](const auto& info) { return info.name == name; });
        if (found == kinds.end()) {
            fail(fmt::format("--without {}: there is no such fault; see --list-faults", name));
        }
        options.without.push_back(found->kind);
    }
    return options;
}

void print_trace(const sim::SimResult& result) {
    for (const std::string& line : result.trace) {
        fmt::print("{}\n", line);
    }
}

/// True: there are none.
bool list_unreached_probes() {
    std::size_t unreached = 0;
    for (const auto& [name, count] : ddprun::probes()) {
        if (count == 0) {
            unreached += 1;
            fmt::print("never reached: {}\n", name);
        }
    }
    fmt::print("{} probes, {} never reached\n", ddprun::probes().size(), unreached);
    return unreached == 0;
}

int run_seeds(const Arguments& arguments) {
    const auto began = std::chrono::steady_clock::now();
    const std::uint64_t first = arguments.is_one ? arguments.seed : arguments.first_seed;
    const std::uint64_t count = arguments.is_one ? 1 : arguments.seeds;
    std::uint64_t seeds = 0;
    std::uint64_t failed = 0;
    std::uint64_t events = 0;
    std::uint64_t hash = 0;
    double seconds = 0;
    for (std::uint64_t seed = first; seed < first + count; ++seed) {
        current_seed = seed;
        const sim::SimResult result =
            sim::Simulation(options_of(arguments, seed), arguments.is_traced).run();
        print_trace(result);
        seeds += 1;
        events += result.events;
        hash = hash * 1099511628211ULL ^ result.hash;
        if (arguments.is_traced) {
            fmt::print("seed {}: hash {:016x}, {} events, {} faults, last verdict: {}\n", seed,
                       result.hash, result.events, result.faults,
                       result.verdict.empty() ? "none" : result.verdict);
        }
        if (result.violation.has_value()) {
            failed += 1;
            fmt::print("seed {}: VIOLATION {}\n", seed, *result.violation);
            std::fflush(stdout);
        }
        seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
        if ((failed > 0 && arguments.stops_at_first) ||
            (arguments.seconds > 0 && seconds > arguments.seconds)) {
            break;
        }
    }
    fmt::print("{} seeds from {}, {} events, {} violations, hash {:016x}, {:.1f} s\n", seeds, first,
               events, failed, hash, seconds);
    const bool are_all_reached = !arguments.lists_unreached || list_unreached_probes();
    return failed == 0 && are_all_reached ? EXIT_SUCCESS : EXIT_FAILURE;
}

int shrink_seed(const Arguments& arguments) {
    current_seed = arguments.seed;
    const std::optional<sim::Shrunk> shrunk = sim::shrink(options_of(arguments, arguments.seed));
    if (!shrunk.has_value()) {
        fmt::print("seed {} violates nothing: there is nothing to shrink\n", arguments.seed);
        return EXIT_SUCCESS;
    }
    print_trace(shrunk->result);
    fmt::print("VIOLATION {}\n", *shrunk->result.violation);
    fmt::print("{} lines, {} faults, {} nodes, after {} runs; again with\n  {} --trace\n",
               shrunk->result.trace.size(), shrunk->result.faults, shrunk->options.nodes,
               shrunk->runs, sim::command_line(shrunk->options, arguments.bug));
    return EXIT_FAILURE;
}

int tell_forecast(Arguments& arguments) {
    sim::ForecastOptions& options = arguments.forecast;
    options.mtbf = taken(sim::parse_duration(arguments.mtbf));
    options.repair = taken(sim::parse_duration(arguments.repair));
    options.checkpoint_every = taken(sim::parse_duration(arguments.every));
    options.checkpoint_takes = taken(sim::parse_duration(arguments.takes));
    options.restart_takes = taken(sim::parse_duration(arguments.restart));
    options.stop_takes = taken(sim::parse_duration(arguments.stop));
    options.lasts = taken(sim::parse_duration(arguments.lasts));
    options.lease = taken(sim::parse_duration(arguments.lease));
    options.seed = arguments.is_one ? arguments.seed : 1;
    const bool makes_sense = options.mtbf.count() > 0 && options.checkpoint_every.count() > 0 &&
                             options.lasts.count() > 0 &&
                             options.lease >= ddprun::Milliseconds(100) &&
                             options.min_nodes <= options.nodes;
    if (!makes_sense) {
        fail(
            "--mtbf, --checkpoint-every and --for must be more than 0, --lease at least 100ms, "
            "--min-nodes at most --nodes");
    }
    const sim::Forecast result = sim::forecast(options);
    fmt::print("{}", arguments.is_json ? sim::forecast_json(options, result)
                                       : sim::forecast_table(options, result));
    if (!arguments.is_json) {
        fmt::print("  simulated in {:.1f} s, {} steps of coordinator and supervisors\n",
                   result.cpu_seconds, result.steps);
    }
    return EXIT_SUCCESS;
}

/// The first seed that finds `bug`, and nothing without it; none among the first `most`.
std::optional<std::uint64_t> hunt(const Arguments& arguments, ddprun::PlantedBug bug,
                                  std::string& violation) {
    for (std::uint64_t i = 0; i < arguments.hunted; ++i) {
        current_seed = arguments.first_seed + i;
        const sim::SimOptions options = options_of(arguments, current_seed);
        ddprun::planted_bug = bug;
        const sim::SimResult with = sim::Simulation(options, false).run();
        ddprun::planted_bug = ddprun::PlantedBug::None;
        if (with.violation.has_value() &&
            !sim::Simulation(options, false).run().violation.has_value()) {
            violation = *with.violation;
            return current_seed;
        }
    }
    return std::nullopt;
}

/// As bugs.txt has them.
int hunt_all(const Arguments& arguments) {
    int missing = 0;
    for (const ddprun::PlantedBugInfo& info : ddprun::planted_bugs()) {
        std::string violation;
        const std::optional<std::uint64_t> seed = hunt(arguments, info.bug, violation);
        missing += seed.has_value() ? 0 : 1;
        fmt::print("{} {}  # {}\n", info.name, seed.has_value() ? fmt::format("{}", *seed) : "-",
                   seed.has_value() ? violation : "not found");
    }
    fmt::print("# {} planted bugs, {} not found within {} seeds from {}\n",
               ddprun::planted_bugs().size(), missing, arguments.hunted, arguments.first_seed);
    return missing == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

void list_bugs() {
    for (const ddprun::PlantedBugInfo& info : ddprun::planted_bugs()) {
        fmt::print("{:<28} {}\n", info.name, info.what);
    }
}

void list_faults() {
    for (const sim::FaultKindInfo& info : sim::fault_kinds()) {
        fmt::print("{:<20} {}\n", info.name, info.what);
    }
}

void list_knobs() {
    const sim::SimOptions options;
    for (const sim::Knob& knob : sim::knobs()) {
        fmt::print("{:<28} simplest {}\n", knob.name, knob.simplest);
    }
}

void add_simulation_options(CLI::App& app, Arguments& arguments) {
    const char* group = "Random runs";
    app.add_option("--seeds", arguments.seeds, "how many seeds to run")->group(group);
    app.add_option("--first-seed", arguments.first_seed, "the first of them")->group(group);
    app.add_option("--seconds", arguments.seconds, "stop after so long")->group(group);
    app.add_flag("--stop-at-first", arguments.stops_at_first, "stop at a violation")->group(group);
    app.add_option("--seed", arguments.seed, "this one only")->group(group);
    app.add_flag("--trace", arguments.is_traced, "print what happens")->group(group);
    app.add_flag("--shrink", arguments.is_shrunk, "make the violation of --seed simple")
        ->group(group);
    app.add_option("--set", arguments.changes, "NAME=NUMBER,…: not what the seed drew")
        ->group(group);
    app.add_option("--keep", arguments.kept, "of the seed's faults only these: 2,5-9")
        ->group(group);
    app.add_option("--without", arguments.without, "leave these kinds of faults out")
        ->delimiter(',')
        ->group(group);
    app.add_option("--nodes-between", arguments.range, "LEAST:MOST nodes instead of 1 to 16")
        ->group(group);
    app.add_flag("--probes", arguments.lists_unreached,
                 "list the rare branches that no seed reached, and fail if there are any")
        ->group(group);
    app.add_option("--hunt", arguments.hunted, "find each planted bug within so many seeds")
        ->group(group);
    app.add_option("--bug", arguments.bug, "with this mistake planted")->group(group);
}

void add_forecast_options(CLI::App& app, Arguments& arguments) {
    const char* group = "Forecast";
    sim::ForecastOptions& options = arguments.forecast;
    app.add_option("--nodes", options.nodes, "of the job")
        ->check(CLI::Range(1, 16000))
        ->group(group);
    app.add_option("--mtbf", arguments.mtbf,
                   "mean time between failures of the whole job, not of one node: 1,000 nodes that "
                   "each fail once in 250 days give 6h")
        ->group(group);
    app.add_option("--checkpoint-every", arguments.every, "of training")->group(group);
    app.add_option("--checkpoint-takes", arguments.takes, "training stands still so long")
        ->group(group);
    app.add_option("--restart-takes", arguments.restart, "from start to the first new step")
        ->group(group);
    app.add_option("--stop-takes", arguments.stop, "from SIGTERM to a worker's end")->group(group);
    app.add_option("--slots", options.slots, "workers of a node")
        ->check(CLI::Range(1, 1024))
        ->group(group);
    app.add_option("--spares", options.spares, "nodes beyond --nodes, ready from the start")
        ->check(CLI::Range(0, 4096))
        ->group(group);
    app.add_option("--min-nodes", options.min_nodes, "as in --nnodes MIN:MAX; as many as --nodes")
        ->group(group);
    app.add_option("--repair", arguments.repair, "until a failed node is back")->group(group);
    app.add_option(
           "--worker-failures", options.worker_percent,
           "percent of failures in which a worker crashes and its node stays; in the others "
           "the node falls silent")
        ->check(CLI::Range(0, 100))
        ->group(group);
    app.add_option("--lease", arguments.lease, "a silent node is believed alive so long")
        ->group(group);
    app.add_option("--for", arguments.lasts, "how long the job takes")->group(group);
    app.add_flag("--json", arguments.is_json, "print it for programs")->group(group);
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app(kDescription);
    app.footer(kForecastNotes);
    Arguments arguments{.every = "10m",
                        .takes = "10s",
                        .restart = "60s",
                        .stop = "1s",
                        .lasts = "30d",
                        .lease = "1s"};
    arguments.repair = "1h";
    add_simulation_options(app, arguments);
    add_forecast_options(app, arguments);
    bool lists_bugs = false;
    bool lists_faults = false;
    bool lists_knobs = false;
    app.add_flag("--list-bugs", lists_bugs, "what --bug takes");
    app.add_flag("--list-faults", lists_faults, "what goes wrong in random runs");
    app.add_flag("--list-knobs", lists_knobs, "what --set takes");
    CLI11_PARSE(app, argc, argv);
    std::signal(SIGABRT, say_seed);
    arguments.is_one = app.count("--seed") > 0;
    arguments.has_kept = app.count("--keep") > 0;
    if (!arguments.bug.empty()) {
        const std::optional<ddprun::PlantedBug> bug = ddprun::planted_bug_named(arguments.bug);
        if (!bug.has_value()) {
            fail(fmt::format("--bug {}: there is none of that name; see --list-bugs",
                             arguments.bug));
        }
        ddprun::planted_bug = *bug;
    }
    if (lists_bugs) {
        list_bugs();
    } else if (lists_faults) {
        list_faults();
    } else if (lists_knobs) {
        list_knobs();
    } else if (!arguments.mtbf.empty()) {
        return tell_forecast(arguments);
    } else if (app.count("--nodes") > 0) {
        fail(
            "--nodes asks for a forecast: give --mtbf too; for random runs there is "
            "--nodes-between");
    } else if (arguments.hunted > 0) {
        return hunt_all(arguments);
    } else if (arguments.is_shrunk) {
        return shrink_seed(arguments);
    } else {
        return run_seeds(arguments);
    }
    return EXIT_SUCCESS;
}
