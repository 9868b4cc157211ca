// When the store's thread looks before it sleeps.
#include <catch2/catch.hpp>

#include "rendezvous/store/net/busy_poll.hpp"

using namespace ddprun::rdzv;

namespace {

constexpr std::uint64_t kClient = 17;
constexpr std::uint64_t kOther = 18;

/// One whose only client has asked twice in a row, at once.
StoreBusyPoll in_dialogue() {
    StoreBusyPoll busy_poll(true);
    busy_poll.on_turn(kClient, false);
    busy_poll.on_turn(kClient, true);
    return busy_poll;
}

/// Short waits without looking until it is due again; `most` if it is not.
unsigned waits_until_due(StoreBusyPoll& busy_poll, unsigned most) {
    unsigned waits = 0;
    while (waits < most && !busy_poll.is_due()) {
        busy_poll.on_turn(kClient, true);
        ++waits;
    }
    return waits;
}

}  // namespace

TEST_CASE("the store polls for one client that asks again at once") {
    StoreBusyPoll busy_poll(true);
    CHECK_FALSE(busy_poll.is_due());
    CHECK_FALSE(busy_poll.needs_time());
    for (int turn = 0; turn < 3; ++turn) {
        busy_poll.on_turn(kClient, false);
        CHECK_FALSE(busy_poll.is_due());
        CHECK(busy_poll.needs_time());
    }
    busy_poll.on_turn(kClient, true);
    CHECK(busy_poll.is_due());
    busy_poll.on_turn(kClient, true);
    CHECK(busy_poll.is_due());
}

TEST_CASE("the store polls for nobody who takes time, takes turns, or comes with others") {
    StoreBusyPoll busy_poll = in_dialogue();
    SECTION("another client") {
        busy_poll.on_turn(kOther, true);
    }
    SECTION("several") {
        busy_poll.on_turn(StoreBusyPoll::kNobody, true);
        CHECK_FALSE(busy_poll.needs_time());
    }
    SECTION("the same, later") {
        busy_poll.on_turn(kClient, false);
    }
    CHECK_FALSE(busy_poll.is_due());
}

TEST_CASE("the store never polls on a machine with one processor") {
    StoreBusyPoll busy_poll(false);
    for (int turn = 0; turn < 4; ++turn) {
        busy_poll.on_turn(kClient, true);
        CHECK_FALSE(busy_poll.is_due());
    }
}

TEST_CASE("looking out in vain is left out for longer each time, and soon again after a success") {
    constexpr unsigned kMost = 2 * StoreBusyPoll::kLeftOutMax;
    StoreBusyPoll busy_poll = in_dialogue();
    for (unsigned left_out = 1; left_out < StoreBusyPoll::kLeftOutMax;
         left_out = 2 * left_out + 1) {
        busy_poll.on_turn(kClient, false);
        CHECK(waits_until_due(busy_poll, kMost) == left_out);
    }
    for (int i = 0; i < 3; ++i) {
        busy_poll.on_turn(kClient, false);
        CHECK(waits_until_due(busy_poll, kMost) == StoreBusyPoll::kLeftOutMax);
    }
    busy_poll.on_turn(kClient, true);
    busy_poll.on_turn(kClient, false);
    CHECK(waits_until_due(busy_poll, kMost) == 1);
}
