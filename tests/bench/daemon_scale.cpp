// The cost of a daemon's decisions about one large job: tests/bench/scale.py makes a table of it.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tests/support/daemon_plays.hpp"

namespace ddprun::test {

namespace {

using nlohmann::json;

double at_share(const std::vector<double>& ordered, double share) {
    const auto place =
        static_cast<std::size_t>(std::ceil(share * static_cast<double>(ordered.size())));
    return ordered[std::max<std::size_t>(place, 1) - 1];
}

json json_of(const Row& row, int nodes) {
    std::vector<double> ordered = row.turns_us;
    std::sort(ordered.begin(), ordered.end());
    const double all = std::accumulate(ordered.begin(), ordered.end(), 0.0);
    const std::size_t inputs = row.inputs > 0 ? row.inputs : ordered.size();
    return {{"event", row.event},
            {"nodes", nodes},
            {"inputs", inputs},
            {"cpu_ms", all / 1e3},
            {"us_each", all / static_cast<double>(inputs)},
            {"median_us", at_share(ordered, 0.5)},
            {"p95_us", at_share(ordered, 0.95)},
            {"p99_us", at_share(ordered, 0.99)},
            {"max_us", ordered.back()},
            {"messages", row.messages},
            {"message_bytes", row.message_bytes},
            {"records", row.records}};
}

}  // namespace

}  // namespace ddprun::test

int main(int argc, char** argv) {
    using namespace ddprun::test;
    int nodes = 100;
    std::string part;
    CLI::App app{"The cost of a daemon's decisions, for tests/bench/scale.py"};
    app.add_option("--nodes", nodes)->check(CLI::Range(64, 16000));
    app.add_option("part", part)
        ->required()
        ->check(CLI::IsMember({"job", "failure", "journal", "adoption"}));
    CLI11_PARSE(app, argc, argv);
    Stage stage(nodes);
    if (part == "job") {
        play_job(stage);
    } else if (part == "failure") {
        play_failure(stage);
    } else {
        play_return(stage, part == "journal");
    }
    json rows = json::array();
    for (const Row& row : stage.rows()) {
        rows.push_back(json_of(row, nodes));
    }
    fmt::print("{}\n", rows.dump());
    return EXIT_SUCCESS;
}
