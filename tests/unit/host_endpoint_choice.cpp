// Goal: which of several daemons an agent asks next. Method: the choice alone, told what happened.

#include <string>
#include <vector>

#include "rendezvous/host/endpoint_choice.hpp"
#include "tests/support/catch.hpp"

namespace ddprun::rdzv {
namespace {

const Endpoint kA{"a", 1};
const Endpoint kB{"b", 1};
const Endpoint kC{"c", 1};

struct Rig {
    explicit Rig(std::vector<Endpoint> endpoints) : choice(std::move(endpoints), limits, Rng(7)) {}

    /// Asks the next one, which refuses the connection; who it was.
    std::string refused() {
        const std::string asked = next();
        choice.failed(false);
        return asked;
    }
    std::string next() {
        last = choice.next();
        return last.endpoint.host;
    }
    [[nodiscard]] std::string unreachable() const {
        AgentMessage join = Join{};
        static_cast<void>(choice.asking(join));
        return std::get<Join>(join).unreachable;
    }

    Limits limits;
    EndpointChoice choice;
    EndpointAttempt last;
};

TEST_CASE("a single daemon is asked again after pauses that double, and are short once it spoke") {
    Rig rig({kA});
    CHECK(rig.refused() == "a");
    CHECK(rig.last.pause == Milliseconds(0));
    Milliseconds most = rig.limits.reconnect_backoff_min;
    for (int i = 0; i < 20; ++i) {
        CHECK(rig.refused() == "a");
        CHECK(rig.last.pause >= most / 2);
        CHECK(rig.last.pause <= most);
        most = std::min(2 * most, rig.limits.reconnect_backoff_max);
    }
    CHECK(rig.last.pause >= rig.limits.reconnect_backoff_max / 2);
    CHECK(rig.last.connect_timeout == rig.limits.connect_timeout);
    CHECK(rig.next() == "a");
    rig.choice.answered();
    CHECK(rig.next() == "a");
    CHECK(rig.last.pause <= rig.limits.reconnect_backoff_min);
}

TEST_CASE("several daemons are asked in turn, with a pause before each further round") {
    Rig rig({kA, kB, kC});
    for (int round = 0; round < 3; ++round) {
        for (const char* name : {"a", "b", "c"}) {
            CHECK(rig.refused() == name);
            const bool is_pause_due = round > 0 && rig.last.endpoint == kA;
            CHECK((rig.last.pause > Milliseconds(0)) == is_pause_due);
            CHECK(rig.last.connect_timeout == rig.limits.leader_lease / 2);
            CHECK(rig.last.hello_timeout == rig.limits.hello_timeout);
        }
    }
}

TEST_CASE("who fell silent is asked at once, with little patience, and then after the others") {
    Rig rig({kA, kB, kC});
    CHECK(rig.next() == "a");
    rig.choice.answered();
    rig.choice.fell_silent();
    CHECK(rig.next() == "a");
    CHECK(rig.last.pause == Milliseconds(0));
    CHECK(rig.last.hello_timeout == rig.limits.leader_lease / 2);
    SECTION("the connection comes up and ends without a word") {
        CHECK(rig.unreachable().empty());
        CHECK(rig.next() == "b");
        CHECK(rig.next() == "c");
        CHECK(rig.next() == "a");
    }
    SECTION("it does not answer: others are asked, and told so") {
        rig.choice.failed(true);
        CHECK(rig.next() == "b");
        CHECK(rig.unreachable() == "a:1");
        rig.choice.answered();
        CHECK(rig.unreachable().empty());
    }
}

TEST_CASE(
    "who was asked again is not asked in its turn before the others, even if they are silent") {
    Rig rig({kA, kB, kC});
    CHECK(rig.refused() == "a");
    CHECK(rig.next() == "b");
    rig.choice.redirected("a:1");
    CHECK(rig.next() == "a");
    rig.choice.answered();
    rig.choice.fell_silent();
    CHECK(rig.next() == "a");
    rig.choice.failed(true);
    CHECK(rig.next() == "c");
    rig.choice.failed(true);
    CHECK(rig.unreachable() == "c:1");
    CHECK(rig.next() == "b");
}

TEST_CASE("an unreachable daemon misses its turns, and is asked again all the same") {
    Rig rig({kA, kB});
    CHECK(rig.next() == "a");
    rig.choice.failed(true);
    for (int turn = 0; turn < rig.limits.missed_turns_max; ++turn) {
        CHECK(rig.refused() == "b");
        // No round without a pause, though the other one is all that is left of it.
        CHECK((rig.last.pause > Milliseconds(0)) == (turn > 0));
    }
    CHECK(rig.refused() == "b");
    CHECK(rig.refused() == "a");
}

TEST_CASE("a daemon that refuses is told of, but misses no turn") {
    Rig rig({kA, kB});
    CHECK(rig.next() == "a");
    rig.choice.redirected("b:1");
    CHECK(rig.refused() == "b");
    CHECK(rig.refused() == "b");
    CHECK(rig.next() == "a");
    CHECK(rig.unreachable() == "b:1");
    rig.choice.failed(false);
    CHECK(rig.next() == "b");
}

TEST_CASE("a redirect is followed at once, but not for ever") {
    Rig rig({kA, kB});
    CHECK(rig.next() == "a");
    for (int i = 0; i < rig.limits.redirects_max; ++i) {
        const std::string to = i % 2 == 0 ? "x" : "y";
        rig.choice.redirected(to + ":1");
        CHECK(rig.next() == to);
        CHECK(rig.last.pause == Milliseconds(0));
    }
    rig.choice.redirected("x:1");
    CHECK(rig.next() == "b");
    SECTION("who answers makes the next redirects count from zero") {
        rig.choice.answered();
        rig.choice.redirected("x:1");
        CHECK(rig.next() == "x");
    }
    SECTION("a redirect to nowhere is none") {
        rig.choice.redirected("");
        CHECK(rig.next() == "a");
        CHECK(rig.last.pause > Milliseconds(0));
    }
}

TEST_CASE("a follower that names the unreachable daemon nevertheless is believed") {
    Rig rig({kA, kB});
    CHECK(rig.next() == "a");
    rig.choice.failed(true);
    CHECK(rig.next() == "b");
    CHECK(rig.unreachable() == "a:1");
    rig.choice.redirected("a:1");
    CHECK(rig.unreachable().empty());
    CHECK(rig.next() == "a");
}

TEST_CASE("an answer to a join is waited for as long as a term lasts, then others are asked") {
    Rig rig({kA, kB, kC});
    AgentMessage join = Join{};
    AgentMessage unfit = Unfit{};
    AgentMessage beat = Beat{1};
    CHECK(rig.next() == "a");
    CHECK(rig.choice.asking(join) == rig.limits.leader_lease);
    CHECK(rig.choice.asking(unfit) == rig.limits.leader_lease);
    CHECK_FALSE(rig.choice.asking(beat).has_value());
    rig.choice.redirected("c:1");
    CHECK(rig.next() == "c");
    rig.choice.nobody_leads();
    CHECK(rig.next() == "b");
    rig.choice.redirected("c:1");
    CHECK(rig.next() == "c");
    rig.choice.nobody_leads();
    CHECK(rig.next() == "a");  // c's turn, which it misses once

    Rig alone({kA});
    CHECK(alone.next() == "a");
    CHECK_FALSE(alone.choice.asking(join).has_value());
}

}  // namespace
}  // namespace ddprun::rdzv
