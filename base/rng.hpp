#pragma once

#include <cstdint>
#include <random>

namespace ddprun {

/// Random numbers from a seed: the same on every compiler, which the standard's distributions are
/// not. Passed by value into whatever needs chance, so that a run can be repeated from its seed.
class Rng {
public:
    explicit Rng(std::uint64_t seed) : engine_(seed) {}

    std::uint64_t next() { return engine_(); }

    /// Uniform in [0, bound); `bound` is at least 1. The bias of the modulo is below 2^-32 for the
    /// bounds used here.
    std::uint64_t below(std::uint64_t bound) { return engine_() % bound; }

    /// True in `numerator` of `denominator` cases.
    bool chance(std::uint64_t numerator, std::uint64_t denominator) {
        return below(denominator) < numerator;
    }

private:
    std::mt19937_64 engine_;
};

/// 64 bits from the kernel, for seeds and ids. Blocks only before the kernel's pool is ready.
[[nodiscard]] std::uint64_t random_seed();

}  // namespace ddprun
