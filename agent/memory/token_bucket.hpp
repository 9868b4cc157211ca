#pragma once

#include <cstdint>

#include "base/instant.hpp"

namespace ddprun::agent {

/// Bounds a flow of bytes: in any span of time at most `burst` and `bytes_per_second` times that
/// span. Pure.
class TokenBucket {
public:
    TokenBucket(std::uint64_t bytes_per_second, std::uint64_t burst)
        : bytes_per_second_(bytes_per_second), burst_(burst), level_(burst) {}

    /// Takes `bytes`, at most the burst, if so many are there. `now` never goes back.
    [[nodiscard]] bool take(Instant now, std::uint64_t bytes);

    /// The moment from which take() gives `bytes`, if nothing else is taken.
    [[nodiscard]] Instant when(std::uint64_t bytes) const;

private:
    std::uint64_t bytes_per_second_;
    std::uint64_t burst_;
    std::uint64_t level_;  ///< at filled_at_
    Instant filled_at_ = Instant::min();
};

}  // namespace ddprun::agent
