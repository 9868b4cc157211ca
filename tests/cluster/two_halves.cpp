// The example of model parallelism: two workers with a half of a network each end with the
// parameters that one process with both halves ends with, bit for bit, also when they are stopped
// and go on.

#include <sstream>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"
#include "tests/support/places.hpp"

using namespace ddprun;
using namespace ddprun::test;

namespace {

std::vector<std::string> two_halves(const std::string& folder, int epochs) {
    return {bin_dir() + "/two_halves", "--epochs", std::to_string(epochs), "--checkpoint-dir",
            folder};
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

std::string train_by_two(Cluster& cluster, const std::string& folder, int epochs) {
    std::vector<std::string> arguments = two_halves(folder, epochs);
    arguments.insert(arguments.begin(), {"--nproc-per-node", "2"});
    return parameters_of(cluster.start_ddprun(arguments));
}

}  // namespace

TEST_CASE("a network in two halves on two workers is trained as it is in one process") {
    Cluster cluster;
    StartOptions alone;
    alone.argv = two_halves(cluster.dir() / "alone", 3);
    const std::string expected = parameters_of(cluster.start(alone));
    CHECK(train_by_two(cluster, cluster.dir() / "at-once", 3) == expected);

    const std::string first = train_by_two(cluster, cluster.dir() / "in-parts", 1);
    CHECK(first != expected);
    CHECK(train_by_two(cluster, cluster.dir() / "in-parts", 3) == expected);
}
