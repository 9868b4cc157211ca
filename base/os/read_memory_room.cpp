#include "base/os/read_memory_room.hpp"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "base/os/read_files.hpp"
#include "base/whole_number.hpp"

namespace ddprun {

namespace {

/// The number behind `key` at the begin of a line.
std::optional<std::uint64_t> number_of(std::string_view text, std::string_view key) {
    while (!text.empty()) {
        const std::string_view line = text.substr(0, text.find('\n'));
        text.remove_prefix(std::min(text.size(), line.size() + 1));
        if (line.starts_with(key)) {
            std::string_view rest = line.substr(key.size());
            rest.remove_prefix(std::min(rest.size(), rest.find_first_not_of(' ')));
            return whole_number<std::uint64_t>(rest.substr(0, rest.find(' ')));
        }
    }
    return std::nullopt;
}

/// Of this cgroup alone; nothing: it has no limit.
std::optional<MemoryRoom> room_of(const std::string& folder) {
    const std::string most = read_whole(folder + "/memory.max").value_or("");
    const std::string used = read_whole(folder + "/memory.current").value_or("");
    const std::optional<std::uint64_t> total = number_of(most, "");
    const std::optional<std::uint64_t> current = number_of(used, "");
    if (!total || !current) {
        return std::nullopt;
    }
    const std::uint64_t back =
        number_of(read_whole(folder + "/memory.stat").value_or(""), "inactive_file ").value_or(0);
    const std::uint64_t held = *current - std::min(*current, back);
    return MemoryRoom{.total = *total, .free = *total - std::min(*total, held)};
}

}  // namespace

std::string own_memory_cgroup(const std::string& root) {
    constexpr std::string_view kUnified = "0::";
    const std::string text = read_whole(root + "/proc/self/cgroup").value_or("");
    std::string_view groups = text;
    while (!groups.empty()) {
        const std::string_view line = groups.substr(0, groups.find('\n'));
        groups.remove_prefix(std::min(groups.size(), line.size() + 1));
        if (line.starts_with(kUnified)) {
            const std::string_view group = line.substr(kUnified.size());
            return fmt::format("{}/sys/fs/cgroup{}", root, group == "/" ? "" : group);
        }
    }
    return {};
}

std::optional<MemoryRoom> read_memory_room(const std::string& root) {
    constexpr std::uint64_t kKibibyte = 1024;
    const std::string machine = read_whole(root + "/proc/meminfo").value_or("");
    const std::optional<std::uint64_t> total = number_of(machine, "MemTotal:");
    const std::optional<std::uint64_t> free = number_of(machine, "MemAvailable:");
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
