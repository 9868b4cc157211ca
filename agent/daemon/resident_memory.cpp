#include "agent/daemon/resident_memory.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/os/read_files.hpp"
#include "base/os/read_memory_room.hpp"
#include "base/whole_number.hpp"

namespace ddprun::agent {

namespace {

/// Returns the share of the last 10 s in which all processes waited for memory.
std::optional<int> pressure_permille(const std::string& root) {
    const std::string folder = own_memory_cgroup(root);
    std::optional<std::string> text;
    if (!folder.empty()) {
        text = read_whole(folder + "/memory.pressure");
    }
    if (!text) {
        text = read_whole(root + "/proc/pressure/memory");
    }
    const auto percent = number_after<double>(text.value_or(""), "full avg10=");
    constexpr double kPermillePerPercent = 10;
    return percent ? std::optional(
                         static_cast<int>(std::clamp(*percent, 0.0, 100.0) * kPermillePerPercent))
                   : std::nullopt;
}

}  // namespace

std::optional<ProcessMemory> memory_of_process(int pid, const std::string& root) {
    constexpr std::uint64_t kKibibyte = 1024;
    const std::string text = read_whole(fmt::format("{}/proc/{}/status", root, pid)).value_or("");
    const auto now = number_after<std::uint64_t>(text, "\nVmRSS:");
    const auto peak = number_after<std::uint64_t>(text, "\nVmHWM:");
    if (!now || !peak) {
        return std::nullopt;
    }
    return ProcessMemory{.resident_bytes = *now * kKibibyte, .peak_bytes = *peak * kKibibyte};
}

std::optional<rdzv::HostMemory> host_memory(const std::string& root) {
    const std::optional<MemoryRoom> room = read_memory_room(root);
    if (!room) {
        return std::nullopt;
    }
    return rdzv::HostMemory{.bytes = room->total - std::min(room->total, room->free),
                            .limit_bytes = room->total,
                            .pressure_permille = pressure_permille(root)};
}

}  // namespace ddprun::agent
