#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "base/rng.hpp"
#include "rendezvous/core/generation.hpp"
#include "rendezvous/core/memory_partner.hpp"

namespace ddprun::rdzv {

namespace {

std::vector<Place> places_on(const std::vector<std::string>& racks) {
    std::vector<Place> places;
    for (const std::string& rack : racks) {
        const std::string name = fmt::format("n{}", places.size());
        places.push_back({.node = NodeId(name), .hostname = name, .topology_key = rack});
    }
    return places;
}

bool is_same_rack(const Place& left, const Place& right) {
    return !left.topology_key.empty() && left.topology_key == right.topology_key;
}

int same_rack_pairs(const std::vector<Place>& places, const std::vector<int>& partners) {
    int pairs = 0;
    for (std::size_t i = 0; i < places.size(); ++i) {
        pairs += is_same_rack(places[i], places[static_cast<std::size_t>(partners[i])]) ? 1 : 0;
    }
    return pairs;
}

/// Each position is the partner of exactly one other position.
bool is_fair(const std::vector<int>& partners) {
    std::vector<int> sorted = partners;
    std::sort(sorted.begin(), sorted.end());
    for (std::size_t i = 0; i < partners.size(); ++i) {
        const int position = static_cast<int>(i);
        if (sorted[i] != position || partners[i] == position) {
            return false;
        }
    }
    return true;
}

/// The least that any fair choice has, by trying all of them.
int fewest_same_rack_pairs(const std::vector<Place>& places) {
    std::vector<int> partners(places.size());
    std::iota(partners.begin(), partners.end(), 0);
    int fewest = static_cast<int>(places.size());
    do {
        if (is_fair(partners)) {
            fewest = std::min(fewest, same_rack_pairs(places, partners));
        }
    } while (std::next_permutation(partners.begin(), partners.end()));
    return fewest;
}

std::vector<Place> random_places(Rng& rng, std::size_t count, std::uint64_t racks) {
    std::vector<std::string> keys(count);
    for (std::string& key : keys) {
        const std::uint64_t rack = rng.below(racks + 1);
        key = rack == 0 ? std::string() : fmt::format("rack{}", rack);
    }
    return places_on(keys);
}

}  // namespace

TEST_CASE("two racks of two nodes back each other up") {
    CHECK(memory_partners(places_on({"r1", "r1", "r2", "r2"})) == std::vector<int>{2, 3, 0, 1});
    CHECK(memory_partners(places_on({"r1", "r2", "r1", "r2"})) == std::vector<int>{1, 0, 3, 2});
}

TEST_CASE("without topology keys the partner is the next node") {
    CHECK(memory_partners(places_on({"", "", ""})) == std::vector<int>{1, 2, 0});
}

TEST_CASE("on a single rack each node still has a partner") {
    CHECK(memory_partners(places_on({"r1", "r1", "r1"})) == std::vector<int>{1, 2, 0});
}

TEST_CASE("a node that is alone has no partner") {
    CHECK(memory_partners({}).empty());
    CHECK(memory_partners(places_on({"r1"})).empty());
}

TEST_CASE("a rack with most of the nodes keeps only the pairs that have no room elsewhere") {
    const std::vector<Place> places = places_on({"r1", "r1", "r2", "r1", "r1"});
    const std::vector<int> partners = memory_partners(places);
    CHECK(is_fair(partners));
    CHECK(same_rack_pairs(places, partners) == 3);  // 4 on r1, and 1 elsewhere
}

TEST_CASE("no fair choice of partners has fewer pairs on one rack") {
    Rng rng(1);
    for (std::size_t count = 2; count <= 7; ++count) {
        for (int round = 0; round < 60; ++round) {
            const std::vector<Place> places = random_places(rng, count, 1 + rng.below(count));
            const std::vector<int> partners = memory_partners(places);
            CAPTURE(count, round);
            REQUIRE(is_fair(partners));
            REQUIRE(same_rack_pairs(places, partners) == fewest_same_rack_pairs(places));
        }
    }
}

TEST_CASE("ten thousand nodes have partners, on another rack wherever there is room") {
    Rng rng(2);
    for (const std::uint64_t racks : {1, 2, 3, 40, 625, 9999}) {
        const std::vector<Place> places = random_places(rng, 10000, racks);
        std::map<std::string, int> sizes;
        for (const Place& place : places) {
            sizes[place.topology_key] += place.topology_key.empty() ? 0 : 1;
        }
        int largest = 0;
        for (const auto& [rack, size] : sizes) {
            largest = std::max(largest, size);
        }
        const std::vector<int> partners = memory_partners(places);
        CAPTURE(racks, largest);
        CHECK(is_fair(partners));
        CHECK(same_rack_pairs(places, partners) == std::max(0, 2 * largest - 10000));
    }
}

TEST_CASE("a replacement on the rack of the lost node changes no partner") {
    std::vector<Place> places = places_on({"r2", "r1", "", "r1", "r2", "r3"});
    const std::vector<int> before = memory_partners(places);
    places[3].node = NodeId("replacement");
    places[3].hostname = "another";
    CHECK(memory_partners(places) == before);
}

TEST_CASE("rows name partners only if a second copy is wanted and another node is here") {
    CurrentGeneration current;
    current.begin(Instant(), places_on({"r1", "r1", "r2", "r2"}), "token", 1);
    JobSettings settings{.max_nodes = 4};
    current.write_rows(settings, {});
    CHECK_FALSE(current.rows.at(NodeId("n0")).memory_partner.has_value());
    settings.memory_replicas = 1;
    current.write_rows(settings, {});
    CHECK(current.rows.at(NodeId("n0")).memory_partner == 2);
    CHECK(current.rows.at(NodeId("n3")).memory_partner == 1);
    current.begin(Instant(), places_on({"r1"}), "token", 2);
    current.write_rows(settings, {});
    CHECK_FALSE(current.rows.at(NodeId("n0")).memory_partner.has_value());
}

}  // namespace ddprun::rdzv
