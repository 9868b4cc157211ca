#include "tests/sim/trace_log.hpp"

#include <fmt/format.h>

namespace ddprun::sim {

void TraceLog::add(Instant now, std::string_view who, std::string_view text) {
    const auto at = std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch());
    const std::string line =
        fmt::format("{:>12.6f}  {:<8} {}", static_cast<double>(at.count()) / 1e6, who, text);
    // FNV-1a.
    for (const char c : line) {
        hash_ = (hash_ ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
    }
    if (keeps_lines_) {
        lines_.push_back(line);
    }
}

}  // namespace ddprun::sim
