// HalfOpen decides which unproven connection makes room for which other one.

#include "rendezvous/server/half_open.hpp"
#include "tests/support/catch.hpp"

namespace ddprun::rdzv {
namespace {

constexpr Limits kLimits{
    .half_open_max = 6, .half_open_per_source_max = 3, .half_open_grace = Milliseconds(100)};

Instant at(int ms) {
    return Instant{} + Milliseconds(ms);
}

/// `count` connections of `source`, one each millisecond from `ms` on.
void fill(HalfOpen& half_open, const std::string& source, int count, int ms, int first_id,
          bool is_expected = false) {
    for (int i = 0; i < count; ++i) {
        half_open.enter(at(ms + i), ConnectionId(static_cast<std::uint64_t>(first_id + i)), source,
                        is_expected);
    }
}

bool is_free(const HalfOpen::Room& room) {
    return std::holds_alternative<HalfOpen::Free>(room);
}

std::uint64_t evicted(const HalfOpen::Room& room) {
    const auto* const evict = std::get_if<HalfOpen::Evict>(&room);
    return evict == nullptr ? 0 : evict->oldest.value();
}

Instant full_until(const HalfOpen::Room& room) {
    const auto* const full = std::get_if<HalfOpen::Full>(&room);
    return full == nullptr ? Instant{} : full->until;
}

TEST_CASE("an address has its share, and then its oldest makes room for its newest") {
    HalfOpen half_open(kLimits);
    fill(half_open, "a", 3, 0, 1);
    REQUIRE(full_until(half_open.room_of(at(50), "a", false)) == at(100));
    REQUIRE(evicted(half_open.room_of(at(100), "a", false)) == 1);
    REQUIRE(is_free(half_open.room_of(at(50), "b", false)));
    REQUIRE(is_free(half_open.room(at(50))));
    half_open.leave(ConnectionId(1));
    REQUIRE(is_free(half_open.room_of(at(100), "a", false)));
}

TEST_CASE("when all are full the address with the most of them makes room") {
    HalfOpen half_open(kLimits);
    fill(half_open, "a", 1, 0, 1);
    fill(half_open, "b", 3, 10, 2);
    fill(half_open, "c", 2, 20, 5);
    REQUIRE(full_until(half_open.room(at(50))) == at(110));
    REQUIRE(evicted(half_open.room(at(110))) == 2);
    half_open.leave(ConnectionId(2));
    REQUIRE(half_open.size() == 5);
    REQUIRE(is_free(half_open.room(at(110))));
}

TEST_CASE("a store's clients come on top where they are expected, and only there") {
    HalfOpen half_open(kLimits);
    half_open.expect(4);
    fill(half_open, "node", 6, 0, 1, true);
    fill(half_open, "stranger", 3, 0, 7);
    REQUIRE(is_free(half_open.room_of(at(500), "node", true)));
    REQUIRE(evicted(half_open.room_of(at(500), "stranger", false)) == 7);
    REQUIRE(is_free(half_open.room(at(500))));
    fill(half_open, "node", 1, 500, 10, true);
    REQUIRE(evicted(half_open.room_of(at(500), "node", true)) == 1);
    // All ten places are taken. The stranger has three more than was expected of him, the node two.
    half_open.leave(ConnectionId(1));
    fill(half_open, "another", 1, 500, 11);
    REQUIRE(evicted(half_open.room(at(500))) == 7);
}

TEST_CASE("without descriptors room is made long before all are full") {
    HalfOpen half_open(kLimits);
    REQUIRE_FALSE(half_open.room_without_descriptors(at(0)));
    fill(half_open, "a", 1, 0, 1);
    REQUIRE(evicted(*half_open.room_without_descriptors(at(100))) == 1);
}

TEST_CASE("who has left is not known any more") {
    HalfOpen half_open(kLimits);
    fill(half_open, "a", 1, 0, 1);
    half_open.leave(ConnectionId(1));
    half_open.leave(ConnectionId(1));
    REQUIRE(half_open.size() == 0);
    REQUIRE_FALSE(half_open.room_without_descriptors(at(100)));
}

}  // namespace
}  // namespace ddprun::rdzv
