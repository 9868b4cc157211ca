// When the store's thread looks before it sleeps.
#include <catch2/catch.hpp>

#include "rendezvous/store/net/lookout.hpp"

using namespace ddprun::rdzv;

namespace {

constexpr std::uint64_t kClient = 17;
constexpr std::uint64_t kOther = 18;

/// One whose only client has asked twice in a row, at once.
StoreLookout in_dialogue() {
    StoreLookout lookout(true);
    lookout.on_turn(kClient, false);
    lookout.on_turn(kClient, true);
    return lookout;
}

/// Short waits without looking until it is due again; `most` if it is not.
unsigned waits_until_due(StoreLookout& lookout, unsigned most) {
    unsigned waits = 0;
    while (waits < most && !lookout.is_due()) {
        lookout.on_turn(kClient, true);
        ++waits;
    }
    return waits;
}

}  // namespace

TEST_CASE("the store looks out for one client that asks again at once") {
    StoreLookout lookout(true);
    CHECK_FALSE(lookout.is_due());
    CHECK_FALSE(lookout.needs_time());
    for (int turn = 0; turn < 3; ++turn) {
        lookout.on_turn(kClient, false);
        CHECK_FALSE(lookout.is_due());
        CHECK(lookout.needs_time());
    }
    lookout.on_turn(kClient, true);
    CHECK(lookout.is_due());
    lookout.on_turn(kClient, true);
    CHECK(lookout.is_due());
}

TEST_CASE("the store looks out for nobody who takes time, takes turns, or comes with others") {
    StoreLookout lookout = in_dialogue();
    SECTION("another client") {
        lookout.on_turn(kOther, true);
    }
    SECTION("several") {
        lookout.on_turn(StoreLookout::kNobody, true);
        CHECK_FALSE(lookout.needs_time());
    }
    SECTION("the same, later") {
        lookout.on_turn(kClient, false);
    }
    CHECK_FALSE(lookout.is_due());
}

TEST_CASE("the store never looks out on a machine with one processor") {
    StoreLookout lookout(false);
    for (int turn = 0; turn < 4; ++turn) {
        lookout.on_turn(kClient, true);
        CHECK_FALSE(lookout.is_due());
    }
}

TEST_CASE("looking out in vain is left out for longer each time, and soon again after a success") {
    constexpr unsigned kMost = 2 * StoreLookout::kLeftOutMax;
    StoreLookout lookout = in_dialogue();
    for (unsigned left_out = 1; left_out < StoreLookout::kLeftOutMax; left_out = 2 * left_out + 1) {
        lookout.on_turn(kClient, false);
        CHECK(waits_until_due(lookout, kMost) == left_out);
    }
    for (int i = 0; i < 3; ++i) {
        lookout.on_turn(kClient, false);
        CHECK(waits_until_due(lookout, kMost) == StoreLookout::kLeftOutMax);
    }
    lookout.on_turn(kClient, true);
    lookout.on_turn(kClient, false);
    CHECK(waits_until_due(lookout, kMost) == 1);
}
