// Boxes within tensors: what two have in common, whether they cover a tensor, who writes what.

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "base/rng.hpp"
#include "worker_runtime/checkpoint/layout.hpp"

using namespace ddprun;
using namespace ddprun::worker;

namespace {

using Index = std::vector<std::int64_t>;

/// Every index of a tensor, in row-major order.
std::vector<Index> indices_of(const Index& shape) {
    std::vector<Index> indices{{}};
    for (const std::int64_t length : shape) {
        std::vector<Index> longer;
        for (const Index& index : indices) {
            for (std::int64_t i = 0; i < length; ++i) {
                longer.push_back(index);
                longer.back().push_back(i);
            }
        }
        indices = std::move(longer);
    }
    return indices;
}

bool has(const Box& box, const Index& index) {
    for (std::size_t d = 0; d < index.size(); ++d) {
        if (index[d] < box.offsets[d] || index[d] >= box.offsets[d] + box.lengths[d]) {
            return false;
        }
    }
    return true;
}

std::string error_of(const Index& shape, const std::vector<Box>& boxes) {
    const Result<void> covered = check_cover(shape, boxes);
    return covered ? "" : covered.error().what;
}

std::int64_t below(Rng& rng, std::int64_t bound) {
    return static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(bound)));
}

Box random_box(Rng& rng, const Index& shape) {
    Box box;
    for (const std::int64_t length : shape) {
        box.offsets.push_back(below(rng, length));
        box.lengths.push_back(1 + below(rng, length - box.offsets.back()));
    }
    return box;
}

/// Cuts one of `boxes` in two, if it can be cut.
void cut_one(Rng& rng, std::vector<Box>& boxes) {
    const std::size_t which = rng.below(boxes.size());
    const std::size_t d = rng.below(boxes[which].lengths.size());
    if (boxes[which].lengths[d] < 2) {
        return;
    }
    const std::int64_t at = 1 + below(rng, boxes[which].lengths[d] - 1);
    Box second = boxes[which];
    second.offsets[d] += at;
    second.lengths[d] -= at;
    boxes[which].lengths[d] = at;
    boxes.push_back(second);
}

}  // namespace

TEST_CASE("the overlap of two boxes has exactly the elements that both have") {
    Rng rng(random_seed());
    int apart = 0;
    for (int round = 0; round < 300; ++round) {
        const Index shape{1 + below(rng, 5), 1 + below(rng, 5), 1 + below(rng, 3)};
        const Box left = random_box(rng, shape);
        const Box right = random_box(rng, shape);
        const std::optional<Box> both = overlap(left, right);
        apart += both ? 0 : 1;
        for (const Index& index : indices_of(shape)) {
            REQUIRE((both && has(*both, index)) == (has(left, index) && has(right, index)));
        }
    }
    CHECK(apart > 0);
    CHECK(overlap({}, {}) == Box{});  // scalars have one element
}

TEST_CASE("boxes cover a tensor if each element is in exactly one") {
    Rng rng(random_seed());
    std::map<std::string, int> verdicts;
    for (int round = 0; round < 500; ++round) {
        const Index shape{1 + below(rng, 6), 1 + below(rng, 4), 1 + below(rng, 4)};
        std::vector<Box> boxes{whole_box(shape)};
        for (int cut = 0; cut < 6; ++cut) {
            cut_one(rng, boxes);
        }
        REQUIRE(error_of(shape, boxes).empty());
        if (rng.below(2) == 0) {
            boxes.push_back(random_box(rng, shape));
        }
        if (rng.below(2) == 0) {
            boxes.erase(boxes.begin() + below(rng, static_cast<std::int64_t>(boxes.size())));
        }
        bool is_hole = false;
        bool is_double = false;
        for (const Index& index : indices_of(shape)) {
            const auto owners = std::count_if(boxes.begin(), boxes.end(),
                                              [&](const Box& box) { return has(box, index); });
            is_hole = is_hole || owners == 0;
            is_double = is_double || owners > 1;
        }
        const std::string error = error_of(shape, boxes);
        const std::string verdict = error.empty()                                ? "covered"
                                    : error.find("in none") != std::string::npos ? "hole"
                                                                                 : "double";
        REQUIRE(verdict == (is_double ? "double" : is_hole ? "hole" : "covered"));
        ++verdicts[verdict];
    }
    CHECK(verdicts.size() == 3);
}

TEST_CASE("what is wrong with boxes is said with the place of the first element") {
    CHECK(error_of({4, 3}, {{{0, 0}, {2, 3}}, {{3, 0}, {1, 3}}}) ==
          "the element at [2,0] of a tensor of shape [4,3] is in none of its parts");
    CHECK(error_of({4}, {{{0}, {3}}, {{2}, {2}}}) ==
          "the element at [2] of a tensor of shape [4] is in several of its parts");
    // The hole that is invisible to a reader of offsets alone.
    CHECK(error_of({4}, {{{0}, {3}}}) ==
          "the element at [3] of a tensor of shape [4] is in none of its parts");
    CHECK(error_of({4}, {{{2}, {3}}}) == "a part of shape [3] at [2] is not within the shape [4]");
    CHECK_FALSE(error_of({4}, {{{0, 0}, {4, 1}}}).empty());
    CHECK_FALSE(error_of({4}, {{{-1}, {5}}}).empty());
    CHECK_FALSE(error_of({4}, {{{INT64_MAX}, {INT64_MAX}}}).empty());
    CHECK(error_of({}, {{{}, {}}}).empty());
    CHECK_FALSE(error_of({}, {}).empty());
    CHECK(error_of({0, 5}, {}).empty());
    // An empty part, anywhere, is no part.
    CHECK(error_of({4, 3}, {{{0, 0}, {4, 3}}, {{2, 1}, {2, 0}}, {{4, 0}, {0, 3}}}).empty());
}

TEST_CASE("parts of ranks that are not the whole are refused by tensor and ranks") {
    const auto error_with = [](const std::vector<RankPart>& parts) {
        const Result<void> checked = check_parts("table", parts);
        return checked ? "" : checked.error().what;
    };
    const auto rows = [](int rank, std::int64_t row, std::int64_t count) {
        return RankPart{rank, "F32", {6, 2}, {.offsets = {row, 0}, .lengths = {count, 2}}};
    };
    CHECK(error_with({rows(0, 0, 2), rows(1, 2, 4), rows(2, 6, 0)}).empty());
    CHECK(error_with({rows(0, 0, 2), rows(1, 2, 3), rows(4, 4, 2)}) ==
          "tensor \"table\": the element at [4,0] of a tensor of shape [6,2] is in several of its "
          "parts: rank 1 has [3,2] at [2,0], rank 4 has [2,2] at [4,0]");
    CHECK(error_with({rows(0, 0, 2), rows(1, 3, 3), rows(2, 6, 0)}) ==
          "tensor \"table\": the element at [2,0] of a tensor of shape [6,2] is in none of its "
          "parts: rank 0 has [2,2] at [0,0], rank 1 has [3,2] at [3,0]");
    CHECK(error_with({rows(3, 2, 5)}) ==
          "tensor \"table\": a part of shape [5,2] at [2,0] is not within the shape [6,2]");
    RankPart other = rows(1, 2, 4);
    other.dtype = "F64";
    CHECK(error_with({rows(0, 0, 2), other}) ==
          "tensor \"table\" is F32 [6,2] on rank 0 and F64 [6,2] on rank 1");
    RankPart along = rows(1, 2, 4);
    along.mesh_dimension = "shard";
    CHECK(error_with({rows(0, 0, 2), along}) ==
          "tensor \"table\" is F32 [6,2] on rank 0 and F32 [6,2] sharded along `shard` on rank 1");
    along.mesh_dimension = "a\nb";
    CHECK_THAT(error_with({rows(0, 0, 2), along}), Catch::Contains("sharded along `a\\nb`"));
    std::vector<RankPart> many;
    for (int rank = 0; rank < 12; ++rank) {
        many.push_back({rank, "U8", {100}, {.offsets = {rank}, .lengths = {1}}});
    }
    CHECK_THAT(error_with(many), Catch::Contains("[12] of a tensor of shape [100] is in none") &&
                                     Catch::Contains("rank 7 has [1] at [7], 4 more ranks have"));
}

TEST_CASE("boxes that cut a tensor into too many pieces are refused in no time") {
    std::vector<Box> boxes;
    for (std::int64_t i = 0; i < 4000; ++i) {
        boxes.push_back({{i, i, i}, {1, 1, 1}});
    }
    CHECK(error_of({4000, 4000, 4000}, boxes) ==
          "4000 parts cut a tensor of shape [4000,4000,4000] into more than 4194304 pieces");
}

TEST_CASE("what every rank has is written once, about equally much by each") {
    CHECK(share_out({}, 4).empty());
    CHECK(share_out({1, 2, 3}, 4) == std::vector<int>{0, 0, 0});
    const std::uint64_t unit = kShareBytesMin;
    CHECK(share_out({unit, 3 * unit, 2 * unit}, 2) == std::vector<int>{1, 0, 1});
    CHECK(share_out({unit, unit, unit - 1}, 100) == std::vector<int>{0, 1, 0});
    Rng rng(random_seed());
    for (int round = 0; round < 50; ++round) {
        const int world = 1 + static_cast<int>(rng.below(8));
        std::vector<std::uint64_t> sizes(1 + rng.below(60));
        for (std::uint64_t& size : sizes) {
            size = rng.below(8 * unit);
        }
        const std::vector<int> ranks = share_out(sizes, world);
        REQUIRE(ranks == share_out(sizes, world));
        std::map<int, std::uint64_t> bytes;
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            REQUIRE((ranks[i] >= 0 && ranks[i] < world));
            bytes[ranks[i]] += sizes[i];
        }
        const std::uint64_t all = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
        const auto writers = std::clamp<std::uint64_t>(all / unit, 1, static_cast<unsigned>(world));
        const std::uint64_t largest = *std::max_element(sizes.begin(), sizes.end());
        for (const auto& [rank, written] : bytes) {
            REQUIRE(written <= all / writers + largest);
        }
    }
}
