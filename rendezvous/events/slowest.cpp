#include "rendezvous/events/slowest.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace ddprun::rdzv {

namespace {

constexpr double kDeviations = 4;
/// The standard deviation in median deviations, for values that are spread normally.
constexpr double kSigmas = 1.4826;
constexpr double kLeastShare = 0.05;
/// A look counts for so much in what is of late.
constexpr double kLookWeight = 0.1;
constexpr int kLooksLeast = 10;
constexpr double kHardlyWaits = 0.25;
constexpr double kMostlyWaits = 0.5;

/// For an even number the lower one: with two ranks, the faster counts. `values` not empty.
double median_of(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

}  // namespace

std::optional<Slowest> find_slowest(const std::vector<StepTime>& ranks) {
    if (ranks.size() < 2) {
        return std::nullopt;
    }
    std::vector<double> own;
    std::vector<double> whole;
    for (const StepTime& rank : ranks) {
        own.push_back(rank.own);
        whole.push_back(rank.whole);
    }
    const double middle = median_of(own);
    const double step = median_of(whole);
    std::vector<double> deviations;
    for (const double one : own) {
        deviations.push_back(std::abs(one - middle));
    }
    const auto last = std::max_element(
        ranks.begin(), ranks.end(),
        [](const StepTime& left, const StepTime& right) { return left.own < right.own; });
    const double more = last->own - middle;
    const double least =
        std::max(kDeviations * kSigmas * median_of(deviations), kLeastShare * step);
    if (step <= 0 || more <= least) {
        return std::nullopt;
    }
    return Slowest{.rank = last->rank, .cost_share = std::min(more / step, 1.0)};
}

void WaitLooks::add(bool waits) {
    ++count;
    const double weight = std::max(kLookWeight, 1.0 / count);
    wait_share += ((waits ? 1.0 : 0.0) - wait_share) * weight;
}

std::optional<Slowest> find_slowest_by_looks(const std::vector<WaitLooks>& ranks) {
    std::optional<Slowest> found;
    double others_least = 1;
    for (const WaitLooks& rank : ranks) {
        if (rank.count < kLooksLeast) {
            return std::nullopt;
        }
        if (rank.wait_share > kHardlyWaits) {
            others_least = std::min(others_least, rank.wait_share);
        } else if (found) {
            return std::nullopt;
        } else {
            found = Slowest{.rank = rank.rank};
        }
    }
    if (!found || ranks.size() < 2 || others_least < kMostlyWaits) {
        return std::nullopt;
    }
    found->cost_share = others_least;
    return found;
}

}  // namespace ddprun::rdzv
