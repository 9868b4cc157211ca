// Several networks and optimizers in one checkpoint, and a loader that is killed with batches in
// flight. DDPRUN_GAN_KILLS says how often a worker is killed (5).

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/rng.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun;
using namespace ddprun::test;

namespace {

constexpr const char* kGan = DDPRUN_TESTS_DIR "/gan";
constexpr int kKillsOfAJob = 8;  // more restarts in a minute are paused between

struct Trained {
    std::vector<std::string> lines;  ///< what both networks are in the end
    std::size_t resumed = 0;
};

/// A training of which so many generations are killed.
Trained train(Cluster& cluster, const std::string& dir, int kills, std::uint64_t seed) {
    // Kills at places that dice choose may meet one step four times in a row.
    Process& job = cluster.start_ddprun(
        {"--nproc-per-node", "2", "--max-restarts", std::to_string(kills), "--max-restarts-at-step",
         "0", kGan, "train", dir, std::to_string(kills), std::to_string(seed)});
    const int code = job.wait_exit();
    INFO(job.text());
    REQUIRE(code == 0);
    CHECK(job.count_lines("^each sample 3 to 3 times$") == 1);
    return {.lines = {job.wait_for_line("^generator "), job.wait_for_line("^judge ")},
            .resumed = job.count_lines("^resumed from step ")};
}

int kills_wanted() {
    const char* const text = std::getenv("DDPRUN_GAN_KILLS");
    return text == nullptr ? 5 : std::atoi(text);
}

}  // namespace

TEST_CASE("two networks end alike however often they are killed, each sample trained on once") {
    const std::uint64_t seed = random_seed() % 1'000'000;
    INFO(fmt::format("seed {}", seed));
    Cluster cluster;
    const std::string dir = cluster.dir() / "undisturbed";
    const Trained expected = train(cluster, dir, 0, 0);
    std::size_t resumed = 0;
    for (int done = 0; done < kills_wanted(); done += kKillsOfAJob) {
        const int kills = std::min(kKillsOfAJob, kills_wanted() - done);
        const Trained killed = train(cluster, cluster.dir() / fmt::format("killed {}", done), kills,
                                     seed + static_cast<std::uint64_t>(done));
        CHECK(killed.lines == expected.lines);
        resumed += killed.resumed;
    }
    WARN(fmt::format("{} kills, {} of them resumed from a checkpoint", kills_wanted(), resumed));

    StartOptions options;
    options.argv = {kGan, "weights", dir};
    Process& alone = cluster.start(options);
    CHECK(alone.wait_exit() == 0);
    CHECK(alone.out() == expected.lines[0] + " of step 36\n");
    cluster.wait_all_gone();
}

TEST_CASE("weights are not loaded from a folder without a checkpoint, and none is made") {
    Cluster cluster;
    StartOptions options;
    options.argv = {kGan, "weights", cluster.dir() / "nothing"};
    Process& alone = cluster.start(options);
    CHECK(alone.wait_exit() == 1);
    CHECK_THAT(alone.err(), Catch::Contains("there is no checkpoint in ") &&
                                Catch::Contains("/nothing; name the folder"));
    CHECK_FALSE(std::filesystem::exists(cluster.dir() / "nothing"));
}
