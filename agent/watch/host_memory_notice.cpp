#include "agent/watch/host_memory_notice.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace ddprun::agent {

std::optional<std::string> HostMemoryNotice::look(const rdzv::Progress& progress, Rank base_rank,
                                                  const std::string& host) {
    constexpr double kPermille = 1000;
    constexpr double kGibibyte = 1 << 30;
    if (!progress.memory || progress.memory->limit_bytes == 0 || progress.generation == said_) {
        return std::nullopt;
    }
    const auto bytes = static_cast<double>(progress.memory->bytes);
    const auto limit = static_cast<double>(progress.memory->limit_bytes);
    if (bytes * kPermille < limit * limits_.host_memory_high_permille) {
        return std::nullopt;
    }
    const auto largest = std::max_element(
        progress.ranks.begin(), progress.ranks.end(), [](const auto& one, const auto& other) {
            return one.memory_bytes.value_or(0) < other.memory_bytes.value_or(0);
        });
    if (largest == progress.ranks.end() || !largest->memory_bytes) {
        return std::nullopt;  // They are being started: the next look can name one.
    }
    said_ = progress.generation;
    return fmt::format(
        "warning: {:.0f} % of the memory of {} is in use: {:.1f} of {:.1f} GiB; beyond it "
        "processes are killed; of the workers, rank {} has most of it: {:.1f} GiB",
        100 * bytes / limit, host, bytes / kGibibyte, limit / kGibibyte,
        base_rank.value() + largest->local_rank.value(),
        static_cast<double>(*largest->memory_bytes) / kGibibyte);
}

}  // namespace ddprun::agent
