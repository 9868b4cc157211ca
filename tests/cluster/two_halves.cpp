// The examples of model parallelism. two_halves: two workers with a half of a network each end with
// the parameters that one process with both halves ends with. model_parallel: so do halves on two
// devices of a process, which are the CPU twice here (tests/gpu/runtime_on_gpu.py has GPUs). Bit
// for bit, also when they are stopped and go on.

#include <sstream>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"
#include "tests/support/places.hpp"

using namespace ddprun;
using namespace ddprun::test;

namespace {

std::vector<std::string> example(const std::string& name, const std::string& folder, int epochs) {
    return {bin_dir() + "/" + name, "--epochs", std::to_string(epochs), "--checkpoint-dir", folder};
}

/// The line with the parameters' hash, at a good end.
std::string parameters_of(Process& process) {
    const int code = process.wait_exit();
    INFO(process.text());
    REQUIRE(code == 0);
    std::istringstream lines(process.text());
    std::string found;
    for (std::string line; std::getline(lines, line);) {
        found = line.starts_with("parameters ") ? line : found;
    }
    REQUIRE_FALSE(found.empty());
    return found;
}

std::string train_by_two(Cluster& cluster, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"--nproc-per-node", "2"});
    return parameters_of(cluster.start_ddprun(arguments));
}

}  // namespace

TEST_CASE("a network in two halves on two workers is trained as it is in one process") {
    Cluster cluster;
    StartOptions alone;
    alone.argv = example("two_halves", cluster.dir() / "alone", 3);
    const std::string expected = parameters_of(cluster.start(alone));
    const auto train = [&](const std::string& folder, int epochs) {
        return train_by_two(cluster, example("two_halves", cluster.dir() / folder, epochs));
    };
    CHECK(train("at-once", 3) == expected);

    const std::string first = train("in-parts", 1);
    CHECK(first != expected);
    CHECK(train("in-parts", 3) == expected);
}

TEST_CASE("a network in halves on two devices of a process is trained as it is on one") {
    Cluster cluster;
    const auto train = [&](const std::string& folder, int epochs, int workers, bool is_on_one) {
        std::vector<std::string> arguments =
            example("model_parallel", cluster.dir() / folder, epochs);
        if (is_on_one) {
            arguments.emplace_back("--one-device");
        }
        StartOptions options;
        options.argv = arguments;
        return workers == 2 ? train_by_two(cluster, arguments)
                            : parameters_of(cluster.start(options));
    };
    const int workers = GENERATE(1, 2);
    const std::string expected = train("one-device", 2, workers, true);
    CHECK(train("two-devices", 2, workers, false) == expected);

    CHECK(train("in-parts", 1, workers, false) != expected);
    CHECK(train("in-parts", 2, workers, false) == expected);
}
