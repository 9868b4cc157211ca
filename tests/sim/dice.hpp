#pragma once

#include <cstdint>

#include "base/instant.hpp"

namespace ddprun::sim {

/// Chance for everything that the simulator makes up (SplitMix64). So small that each node, link
/// and fault has its own: leaving one of them out changes nothing for the others.
class Dice {
public:
    explicit Dice(std::uint64_t seed, std::uint64_t stream = 0)
        : state_(seed * 0x9e3779b97f4a7c15ULL + stream * 0xd1342543de82ef95ULL + 1) {
        next();
    }

    std::uint64_t next() {
        state_ += 0x9e3779b97f4a7c15ULL;
        std::uint64_t z = state_;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
        return z ^ (z >> 31);
    }

    /// Uniform in [0, bound); `bound` is at least 1.
    std::uint64_t below(std::uint64_t bound) { return next() % bound; }
    bool chance(std::uint64_t numerator, std::uint64_t denominator) {
        return below(denominator) < numerator;
    }
    bool percent(int percent) { return chance(static_cast<std::uint64_t>(percent), 100); }

    /// Uniform in [least, most].
    int between(int least, int most) {
        return least + static_cast<int>(below(static_cast<std::uint64_t>(most - least + 1)));
    }
    Milliseconds between(Milliseconds least, Milliseconds most) {
        return least + Milliseconds(static_cast<std::int64_t>(
                           below(static_cast<std::uint64_t>((most - least).count() + 1))));
    }
    /// Uniform in [0, most]; nothing of a negative one.
    Duration up_to(Duration most) {
        return most.count() <= 0 ? Duration{}
                                 : Duration(static_cast<Duration::rep>(
                                       below(static_cast<std::uint64_t>(most.count()) + 1)));
    }

private:
    std::uint64_t state_;
};

}  // namespace ddprun::sim
