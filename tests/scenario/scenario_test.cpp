#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/scenario/transcript.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/places.hpp"

namespace ddprun::sim {

namespace {

std::string read(const std::filesystem::path& path) {
    std::ifstream file(path);
    std::ostringstream content;
    content << file.rdbuf();
    return content.str();
}

}  // namespace

// Goal: every decision about a job is written down and stays as it is until a developer changes it
// knowingly. Method: each transcript is replayed and must come out unchanged. To accept a change,
// run with DDPRUN_REWRITE_TRANSCRIPTS=1 and read the diff.
TEST_CASE("every transcript of the coordinator holds") {
    const std::filesystem::path folder =
        std::filesystem::path(source_dir()) / "tests/scenario/transcripts";
    std::set<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        files.insert(entry.path());
    }
    REQUIRE_FALSE(files.empty());
    for (const std::filesystem::path& path : files) {
        DYNAMIC_SECTION(path.filename().string()) {
            const std::string expected = read(path);
            const Result<std::string> actual = replay(expected);
            INFO((actual.has_error() ? actual.error().what : ""));
            REQUIRE(actual.has_value());
            if (std::getenv("DDPRUN_REWRITE_TRANSCRIPTS") != nullptr) {
                std::ofstream(path) << *actual;
                continue;
            }
            INFO(first_difference(expected, *actual));
            CHECK(expected == *actual);
        }
    }
}

TEST_CASE("a transcript with a command that nobody knows is refused with its line") {
    const Result<std::string> result = replay("scenario x\nsettings nnodes=1\nexplode a\n");
    REQUIRE(result.has_error());
    CHECK(result.error().what == "line 3: explode a: no such command: explode");
}

TEST_CASE("a changed expectation shows in the difference") {
    const std::string transcript = "scenario x\nsettings nnodes=1\njoin a\n    a <- Nonsense\n";
    const Result<std::string> actual = replay(transcript);
    REQUIRE(actual.has_value());
    const std::string difference = first_difference(transcript, *actual);
    CHECK(difference.find("-     a <- Nonsense") != std::string::npos);
    CHECK(difference.find("+     a <- Accepted") != std::string::npos);
}

}  // namespace ddprun::sim
