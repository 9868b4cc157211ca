#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <string>

#include "agent/keeper/worker_spawner.hpp"
#include "agent/process/saved_process_state.hpp"
#include "tests/support/catch.hpp"

namespace ddprun::agent {

TEST_CASE("the saved process state survives being a word on a command line") {
    const SavedProcessState state = SavedProcessState::capture();
    const auto again = SavedProcessState::from_text(state.to_text());
    REQUIRE(!again.has_error());
    CHECK((*again == state));
    CHECK(state.to_text().find(' ') == std::string::npos);

    const auto made = SavedProcessState::from_text("1001:8000000000000200:400:1000");
    REQUIRE(!made.has_error());
    CHECK(made->ignores(SIGHUP));
    CHECK(made->ignores(SIGPIPE));
    CHECK(made->blocks(SIGUSR1));
    CHECK(made->blocks(64));
    CHECK(!made->blocks(63));
    CHECK(made->to_text() == "1001:8000000000000200:400:1000");
}

TEST_CASE("a text that is no process state is refused") {
    for (const std::string text : {"", "1", "1:2:3", "1:2:3:", "1:2:3:4:5", "1:2:3:x", "1 2 3 4",
                                   "1:2:3:4 ", ":::", "11111111111111111:0:0:0"}) {
        INFO(text);
        CHECK(SavedProcessState::from_text(text).has_error());
    }
}

TEST_CASE("a program is looked for as execvp does") {
    CHECK(*find_program("sh", "/nonexistent:/bin") == "/bin/sh");
    CHECK(*find_program("./anything", "/bin") == "./anything");
    CHECK(find_program("sh", "/nonexistent").error().value() == ENOENT);
    CHECK(find_program("", "/bin").error().value() == ENOENT);
    // A folder of that name is no program, a file without the bit is one that may not be run.
    CHECK(find_program("bin", "/").error().value() == ENOENT);
    CHECK(find_program("passwd", "/etc").error().value() == EACCES);
}

TEST_CASE("variables given for a worker replace those of the environment, the last one wins") {
    REQUIRE(setenv("DDPRUN_TEST_VARIABLE", "old", 1) == 0);
    int seen = 0;
    for (const std::string& variable :
         merged_environment({{"DDPRUN_TEST_VARIABLE", "new"}, {"DDPRUN_TEST_VARIABLE", "newer"}})) {
        if (variable.rfind("DDPRUN_TEST_VARIABLE=", 0) == 0) {
            CHECK(variable == "DDPRUN_TEST_VARIABLE=newer");
            ++seen;
        }
    }
    CHECK(seen == 1);
}

}  // namespace ddprun::agent
