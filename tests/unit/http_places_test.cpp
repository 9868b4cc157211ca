// WatcherPlaces decides which admitted watchers have a place.

#include <string>

#include "rendezvous/http/watcher_places.hpp"
#include "tests/support/catch.hpp"

using namespace ddprun::rdzv;

TEST_CASE("one address takes no other's place, and this machine has places of its own") {
    WatcherPlaces places(4, 3);
    for (int i = 0; i < 3; ++i) {
        CHECK(places.take("10.0.0.7"));
    }
    CHECK_FALSE(places.take("10.0.0.7"));
    CHECK(places.take("10.0.0.8"));
    CHECK_FALSE(places.take("10.0.0.9"));  // all of the others' are taken
    for (int i = 0; i < 4; ++i) {
        CHECK(places.take(""));
    }
    CHECK_FALSE(places.take(""));
    CHECK(places.size() == 8);
    places.leave("10.0.0.7");
    CHECK(places.take("10.0.0.9"));
    CHECK_FALSE(places.take("10.0.0.7"));
    places.leave("");
    CHECK(places.take(""));
}
