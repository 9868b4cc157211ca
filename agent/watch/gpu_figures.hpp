#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/watch/hang_notice.hpp"
#include "agent/watch/node_progress.hpp"
#include "base/instant.hpp"
#include "base/tagged.hpp"
#include "base/watch_limits.hpp"

namespace ddprun::agent {

/// The driver's figures of one GPU. A figure that is not set is not known.
struct GpuFigures {
    int number = 0;                         ///< the driver's
    std::optional<std::uint64_t> permille;  ///< of the driver's last sample period it was at work
    std::optional<std::uint64_t> bytes;     ///< in use, by anybody
    std::optional<std::uint64_t> total_bytes;
    std::optional<std::uint64_t> milliwatts;
    std::vector<LocalRank> ranks;  ///< that have it

    bool operator==(const GpuFigures&) const = default;
};
using AllGpuFigures = std::vector<GpuFigures>;

/// "0:973:1024:4096:412000:0 1:-:-:-:-:-", as ddprun-gpu-use answers; none if it is not that.
[[nodiscard]] std::string text_of(const AllGpuFigures& gpus);
[[nodiscard]] std::optional<AllGpuFigures> gpu_figures_from(std::string_view text);

/// Gives each worker, by local rank, what its GPUs do: use is their mean, the rest their sum.
void add_gpu_figures(const AllGpuFigures& gpus, std::vector<WorkerState>& workers);

/// Answers whether all GPUs are used. Pure.
class GpuBusy {
public:
    explicit GpuBusy(const WatchLimits& limits) : limits_(limits) {}

    void add(const AllGpuFigures& gpus);

    /// A line, without "ddprun: "; none: no GPU has told anything.
    [[nodiscard]] std::optional<std::string> line(Rank base_rank, const std::string& host) const;

private:
    struct Sum {
        std::uint64_t permille = 0;
        std::uint64_t looks = 0;
        std::vector<LocalRank> ranks;
    };
    WatchLimits limits_;
    std::map<int, Sum> sums_;  ///< by the driver's number
};

/// Finds GPUs that only wait: a kernel of NCCL that waits for another rank keeps a GPU at 100 % of
/// use, but draws little power. Pure.
class GpuPower {
public:
    explicit GpuPower(const WatchLimits& limits) : limits_(limits) {}

    /// Other workers start: what was drawn is forgotten.
    void begin() { *this = GpuPower(limits_); }

    void add(Instant now, const AllGpuFigures& gpus);

    /// All GPUs that report their power have drawn little of what they drew before for so long.
    [[nodiscard]] bool waits(Instant now, Milliseconds after) const;

    /// Returns the sign of the GPU that draws least of what it drew; only when waits().
    [[nodiscard]] HangSeen seen(Milliseconds after, Rank base_rank, const std::string& host) const;

private:
    WatchLimits limits_;
    std::map<int, std::uint64_t> most_;  ///< milliwatts of each GPU
    AllGpuFigures last_;
    std::optional<Instant> waits_since_;
};

}  // namespace ddprun::agent
