#include "tests/sim/trace_log.hpp"

#include <fmt/format.h>

namespace ddprun::sim {

void TraceLog::mix(std::string_view bytes) {
    // FNV-1a.
    for (const char c : bytes) {
        hash_ = (hash_ ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
    }
}

void TraceLog::add(Instant now, std::string_view who, std::string_view text) {
    const Duration at = now.time_since_epoch();
    hash_ = (hash_ ^ static_cast<std::uint64_t>(at.count())) * 1099511628211ULL;
    mix(who);
    mix(text);
    if (keeps_lines_) {
        const auto us = std::chrono::duration_cast<std::chrono::microseconds>(at).count();
        lines_.push_back(
            fmt::format("{:>5}.{:06}  {:<8} {}", us / 1000000, us % 1000000, who, text));
    }
}

}  // namespace ddprun::sim
