#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "base/rng.hpp"
#include "rendezvous/core/rank_map.hpp"
#include "tests/support/catch.hpp"

namespace ddprun::rdzv {

namespace {

Place place(const std::string& name, int slots = 1) {
    return Place{NodeId(name), slots, name};
}

Candidate candidate(const std::string& name, int slots = 1) {
    return {place(name, slots), std::nullopt};
}

std::string names(const std::vector<Place>& places) {
    std::string text;
    for (const Place& one : places) {
        text += (text.empty() ? "" : " ") + one.node.value();
    }
    return text;
}

}  // namespace

TEST_CASE("digits in host names are read as numbers") {
    CHECK(is_naturally_before("gpu9", "gpu10"));
    CHECK_FALSE(is_naturally_before("gpu10", "gpu9"));
    CHECK(is_naturally_before("rack2-gpu10", "rack10-gpu1"));
    CHECK(is_naturally_before("gpu99999999999999999999998", "gpu99999999999999999999999"));
    CHECK(is_naturally_before("gpu", "gpu1"));
    CHECK(is_naturally_before("a1", "b0"));
    CHECK(is_naturally_before("gpu1", "gpu1a"));
    CHECK_FALSE(is_naturally_before("gpu1", "gpu1"));
    CHECK_FALSE(is_naturally_before("", ""));
    CHECK(is_naturally_before("gpu000", "gpu1"));
}

TEST_CASE("names that differ in leading zeros have one fixed order") {
    CHECK(is_naturally_before("gpu01", "gpu1"));
    CHECK_FALSE(is_naturally_before("gpu1", "gpu01"));
    CHECK(is_naturally_before("gpu01a", "gpu1b"));
    CHECK(is_naturally_before("gpu1a", "gpu01b"));
}

TEST_CASE("the natural order is a strict order of any names") {
    Rng rng(7);
    const std::string alphabet = "a0019b";
    std::vector<std::string> all;
    for (int i = 0; i < 60; ++i) {
        std::string name;
        for (std::uint64_t n = rng.below(6); n > 0; --n) {
            name += alphabet[rng.below(alphabet.size())];
        }
        all.push_back(name);
    }
    int violations = 0;
    for (const std::string& a : all) {
        for (const std::string& b : all) {
            violations += is_naturally_before(a, b) && is_naturally_before(b, a) ? 1 : 0;
            violations += a != b && !is_naturally_before(a, b) && !is_naturally_before(b, a);
            for (const std::string& c : all) {
                violations += is_naturally_before(a, b) && is_naturally_before(b, c) &&
                              !is_naturally_before(a, c);
            }
        }
    }
    CHECK(violations == 0);
}

TEST_CASE("the first map orders by explicit rank, topology, name and id") {
    std::vector<Candidate> chosen = {candidate("d"), candidate("c"), candidate("b"), candidate("a"),
                                     candidate("e")};
    chosen[0].node_rank = 1;
    chosen[1].node_rank = 0;
    chosen[2].topology_key = "rack1";
    chosen[3].topology_key = "rack2";
    chosen[4].topology_key = "rack1";
    chosen[4].hostname = "b";
    CHECK(names(order_places({}, chosen)) == "c d b e a");
    std::reverse(chosen.begin(), chosen.end());
    CHECK(names(order_places({}, chosen)) == "c d b e a");
}

TEST_CASE("a place carries the slots and the name of its node now") {
    Candidate again = candidate("a", 4);
    again.hostname = "new-name";
    const std::vector<Place> places = order_places({place("a", 2)}, {again});
    REQUIRE(places.size() == 1);
    CHECK(places[0] == Place{NodeId("a"), 4, "new-name"});
}

TEST_CASE("a replacement moves no other rank") {
    const std::vector<Place> previous = {place("a"), place("b"), place("c")};
    CHECK(names(order_places(previous, {candidate("a"), candidate("c"), candidate("x")})) ==
          "a x c");
}

TEST_CASE("of several replacements each takes a hole of its size, others what is left") {
    const std::vector<Place> previous = {place("a", 8), place("b", 4), place("c", 2)};
    CHECK(names(order_places(previous, {candidate("x", 4), candidate("c", 2)})) == "x c");
    CHECK(names(order_places(
              previous, {candidate("x", 4), candidate("y", 8), candidate("c", 2)})) == "y x c");
    CHECK(names(order_places(
              previous, {candidate("x", 4), candidate("y", 2), candidate("c", 2)})) == "y x c");
}

TEST_CASE("places close up in order when nobody replaces the lost, and newcomers come last") {
    const std::vector<Place> previous = {place("b"), place("a"), place("d"), place("c")};
    CHECK(names(order_places(previous, {candidate("c"), candidate("a")})) == "a c");
    CHECK(names(order_places(previous, {candidate("a"), candidate("b"), candidate("c"),
                                        candidate("d"), candidate("y"), candidate("x")})) ==
          "b a d c x y");
    CHECK(order_places(previous, {}).empty());
    CHECK(order_places({}, {}).empty());
}

}  // namespace ddprun::rdzv
