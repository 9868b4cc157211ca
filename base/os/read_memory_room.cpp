#include "base/os/read_memory_room.hpp"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "base/os/read_files.hpp"
#include "base/whole_number.hpp"

namespace ddprun {

namespace {

/// Reads the limit of this cgroup alone; returns nothing if it has none.
std::optional<MemoryRoom> room_of(const std::string& folder) {
    const std::string most = read_whole(folder + "/memory.max").value_or("");
    const std::string used = read_whole(folder + "/memory.current").value_or("");
    const std::optional<std::uint64_t> total = number_after<std::uint64_t>(most, "");
    const std::optional<std::uint64_t> current = number_after<std::uint64_t>(used, "");
    if (!total || !current) {
        return std::nullopt;
    }
    const std::uint64_t back =
        number_after<std::uint64_t>(read_whole(folder + "/memory.stat").value_or(""),
                                    "inactive_file ")
            .value_or(0);
    const std::uint64_t held = *current - std::min(*current, back);
    return MemoryRoom{.total = *total, .free = *total - std::min(*total, held)};
}

}  // namespace

std::string own_cgroup_path(const std::string& root) {
    constexpr std::string_view kUnified = "\n0::";
    const std::string text = "\n" + read_whole(root + "/proc/self/cgroup").value_or("");
    const std::size_t line = text.find(kUnified);
    if (line == std::string::npos) {
        return {};
    }
    const std::size_t path = line + kUnified.size();
    return text.substr(path, text.find('\n', path) - path);
}

std::string own_memory_cgroup(const std::string& root) {
    const std::string path = own_cgroup_path(root);
    return path.empty() ? path : fmt::format("{}/sys/fs/cgroup{}", root, path == "/" ? "" : path);
}

std::optional<MemoryRoom> read_memory_room(const std::string& root) {
    constexpr std::uint64_t kKibibyte = 1024;
    const std::string machine = read_whole(root + "/proc/meminfo").value_or("");
    const std::optional<std::uint64_t> total = number_after<std::uint64_t>(machine, "MemTotal:");
    const std::optional<std::uint64_t> free = number_after<std::uint64_t>(machine, "MemAvailable:");
    if (!total || !free) {
        return std::nullopt;
    }
    MemoryRoom room{.total = *total * kKibibyte, .free = *free * kKibibyte};
    const std::string top = root + "/sys/fs/cgroup";
    // Each limit above it holds for it, too.
    for (std::string folder = own_memory_cgroup(root); folder.size() >= top.size();
         folder.erase(folder.rfind('/'))) {
        if (const auto found = room_of(folder)) {
            room.total = std::min(room.total, found->total);
            room.free = std::min(room.free, found->free);
        }
    }
    return room;
}

}  // namespace ddprun
