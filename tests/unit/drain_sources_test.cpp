// ddprun reads notices that a node will be taken away, as their sources write them.

#include "agent/contract/drain_sources.hpp"

#include <chrono>

#include "tests/support/catch.hpp"

namespace ddprun::agent {

namespace {

using std::chrono::seconds;

/// It is 2026-11-23 05:00:00 UTC.
const Clocks kClocks{.now = Instant(seconds(1000)), .wall = WallTime(seconds(1795410000))};

}  // namespace

TEST_CASE("a deadline is a number of seconds or a time in UTC") {
    CHECK(deadline_in("120", kClocks) == kClocks.now + seconds(120));
    CHECK(deadline_in(" 0\r", kClocks) == kClocks.now);
    CHECK(deadline_in("2026-11-23T05:02:00Z", kClocks) == kClocks.now + seconds(120));
    CHECK(deadline_in("2026-11-23T04:59:00Z", kClocks) == kClocks.now - seconds(60));
    for (const char* other : {"", "soon", "-5", "1.5", "120 s", "2026-11-23T05:02:00+01:00",
                              "2026-11-23", "99999999999999999999", "9999999999999999"}) {
        INFO(other);
        CHECK_FALSE(deadline_in(other, kClocks));
    }
}

TEST_CASE("AWS's notices are read") {
    const Result<LeaveNotice> spot =
        read_spot_notice(R"({"action": "terminate", "time": "2026-11-23T05:02:00Z"})", kClocks);
    REQUIRE(spot);
    CHECK(spot->why == "AWS takes this instance away (terminate)");
    CHECK(spot->gone_at == kClocks.now + seconds(120));
    CHECK_FALSE(spot->is_planned);
    const Result<LeaveNotice> hibernate = read_spot_notice(R"({"action": "hibernate"})", kClocks);
    REQUIRE(hibernate);
    CHECK_FALSE(hibernate->gone_at);
    for (const char* other : {"", "[]", "{}", R"({"action": 1})", "<html>"}) {
        CHECK(read_spot_notice(other, kClocks).has_error());
    }
}

}  // namespace ddprun::agent
