#include "agent/memory/token_bucket.hpp"

#include <algorithm>
#include <chrono>

#include "base/check.hpp"

namespace ddprun::agent {

namespace {

constexpr std::uint64_t kNanosecondsPerSecond = 1'000'000'000;

}  // namespace

bool TokenBucket::take(Instant now, std::uint64_t bytes) {
    DDP_CHECK(bytes <= burst_, bytes, burst_);
    if (filled_at_ == Instant::min()) {
        filled_at_ = now;
    }
    // A span that fills the bucket is not multiplied: the product might be too large.
    const auto passed = static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(now - filled_at_).count());
    const std::uint64_t fills_in = burst_ * kNanosecondsPerSecond / bytes_per_second_;
    if (passed >= fills_in) {
        level_ = burst_;
        filled_at_ = now;
    } else {
        const std::uint64_t gained = passed * bytes_per_second_ / kNanosecondsPerSecond;
        level_ = std::min(burst_, level_ + gained);
        // The rest of the span, which gains no whole byte, counts the next time.
        filled_at_ += std::chrono::nanoseconds(gained * kNanosecondsPerSecond / bytes_per_second_);
    }
    if (bytes > level_) {
        return false;
    }
    level_ -= bytes;
    return true;
}

Instant TokenBucket::when(std::uint64_t bytes) const {
    if (bytes <= level_) {
        return filled_at_;
    }
    const std::uint64_t missing = bytes - level_;
    return filled_at_ +
           std::chrono::nanoseconds(missing * kNanosecondsPerSecond / bytes_per_second_ + 1);
}

}  // namespace ddprun::agent
