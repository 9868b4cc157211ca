#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ddprun::launcher {

/// One GPU of this machine. A value that is not known is empty.
struct Gpu {
    std::string uuid;         ///< "GPU-…"
    std::string pci_address;  ///< as the kernel writes it: "0000:3b:00.0"
    std::vector<std::string> mig_uuids;

    bool operator==(const Gpu&) const = default;
};

/// The processes that have read or written the memory of one GPU lately. A kernel that only waits
/// for another GPU does neither.
struct GpuUse {
    std::optional<std::vector<int>> pids;  ///< of the first process namespace; none: not told
    bool is_memory_used = false;           ///< by anybody, in the driver's last sample period

    bool operator==(const GpuUse&) const = default;
};

/// A process that has memory of a GPU.
struct GpuHolder {
    int pid = 0;  ///< of the first process namespace
    std::optional<std::uint64_t> bytes;

    bool operator==(const GpuHolder&) const = default;
};

/// How much memory of one GPU is in use.
struct GpuMemoryUse {
    std::optional<std::uint64_t> bytes;
    std::vector<GpuHolder> holders;  ///< as far as the driver reports, and was asked

    bool operator==(const GpuMemoryUse&) const = default;
};

/// The work of one GPU. A value that its driver does not report is empty.
struct GpuWork {
    std::optional<unsigned> percent;  ///< of the driver's last sample period a kernel ran
    std::optional<std::uint64_t> bytes;
    std::optional<std::uint64_t> total_bytes;
    std::optional<std::uint64_t> milliwatts;
    std::vector<GpuHolder> holders;  ///< of its memory, as far as the driver reports

    bool operator==(const GpuWork&) const = default;
};

/// The health of one GPU. A value that its driver does not report, or does not have, is empty.
struct GpuHealth {
    std::string uuid;
    std::optional<std::uint64_t> uncorrected_errors;  ///< of memory, since the driver was loaded
    std::optional<bool> has_failed_remap;             ///< bad memory that could not be replaced
    std::optional<bool> has_pending_remap;            ///< bad memory to be replaced by a reset
    std::optional<std::uint64_t> memory_bytes;
    std::optional<std::uint64_t> memory_used_bytes;

    bool operator==(const GpuHealth&) const = default;
};

}  // namespace ddprun::launcher
