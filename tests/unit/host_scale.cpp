// Goal: what a daemon does for each node of a job does not grow with the number of its nodes.
// Method: the plays of scripts/bench.sh scale with 100 and with 400 nodes; messages, bytes and
// records are counted, since times depend on the machine.

#include <algorithm>
#include <string>

#include "tests/support/catch.hpp"
#include "tests/support/daemon_plays.hpp"

namespace ddprun::test {
namespace {

struct Play {
    explicit Play(int nodes) : stage(nodes) {}

    [[nodiscard]] const Row& row(const std::string& event) const {
        const auto found = std::find_if(stage.rows().begin(), stage.rows().end(),
                                        [&](const Row& row) { return row.event == event; });
        REQUIRE(found != stage.rows().end());
        return *found;
    }

    Stage stage;
};

struct PlayedJobs {
    PlayedJobs() {
        play_job(small.stage);
        play_job(large.stage);
    }

    Play small{100};
    Play large{400};
};

TEST_CASE("400 nodes join, start and stop with as many messages each as 100, no larger ones") {
    const PlayedJobs played;
    for (const char* const event : {"joins", "the last join: generation 1 starts", "a node is lost",
                                    "another node joins: generation 2 starts"}) {
        INFO(event);
        const Row& small = played.small.row(event);
        const Row& large = played.large.row(event);
        CHECK(large.messages <= 4 * small.messages + 8);
        CHECK(large.message_bytes / large.messages <= small.message_bytes / small.messages + 16);
        CHECK(large.records == small.records);
    }
}

TEST_CASE("nodes that come at the same time are not each explained to all others") {
    const PlayedJobs played;
    Play failed(400);
    play_failure(failed.stage);
    // The job's time is too short for more explanations than these few.
    CHECK(played.large.row("their nodes join again").messages <= 400 * 4);
    CHECK(failed.row("nodes have prepared").messages <= 400 * 4);
}

TEST_CASE("a record that nothing waits for is not made for each of many changes") {
    const PlayedJobs played;
    Play returned(400);
    play_return(returned.stage, true);
    CHECK(played.large.row("ranks exit 0").records <= 8);
    CHECK(returned.row("nodes come back to a record").records <= 60);
}

}  // namespace
}  // namespace ddprun::test
