// When a daemon that ended is started again.

#include "launcher/run/daemon_starts.hpp"
#include "tests/support/catch.hpp"

namespace ddprun::launcher {

TEST_CASE("a daemon that has never listened is started so many times") {
    DaemonStarts starts(3);
    for (int i = 0; i < 3; ++i) {
        REQUIRE(starts.may_start());
        starts.ended(false);
    }
    REQUIRE_FALSE(starts.may_start());
}

TEST_CASE("a daemon that has listened is always started again") {
    DaemonStarts starts(3);
    for (int i = 0; i < 10; ++i) {
        starts.ended(false);
        starts.ended(false);
        starts.ended(true);
        REQUIRE(starts.may_start());
    }
}

}  // namespace ddprun::launcher
