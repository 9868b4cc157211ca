#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <utility>

namespace ddprun {

/// A value whose type says what it names, so that a rank is never passed where a slot is meant.
/// `Tag` is an incomplete type, `Rep` the representation.
template <typename Tag, typename Rep>
class Tagged {
public:
    Tagged() = default;
    explicit Tagged(Rep value) : value_(std::move(value)) {}

    [[nodiscard]] const Rep& value() const { return value_; }

    friend auto operator<=>(const Tagged&, const Tagged&) = default;

private:
    Rep value_{};
};

using JobId = Tagged<struct JobIdTag, std::string>;    ///< names what the user wants run
using NodeId = Tagged<struct NodeIdTag, std::string>;  ///< one machine's place, across restarts
using Rank = Tagged<struct RankTag, int>;              ///< a worker's place in a generation
using LocalRank = Tagged<struct LocalRankTag, int>;    ///< a worker's place on its node
using ConnectionId = Tagged<struct ConnectionIdTag, std::uint64_t>;  ///< within one daemon
/// One attempt of the whole group. 0 is "none yet"; the first is 1; it only grows within a run.
using Generation = Tagged<struct GenerationTag, std::uint64_t>;

}  // namespace ddprun
