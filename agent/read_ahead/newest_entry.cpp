#include "agent/read_ahead/newest_entry.hpp"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <tuple>

namespace ddprun::agent {

namespace {

constexpr std::string_view kEndings[] = {".pt", ".pth", ".ckpt", ".safetensors", ".bin", ".tar"};

bool looks_like_checkpoint(const FolderEntry& entry) {
    const std::string_view name = entry.name;
    if (name.empty() || name.starts_with('.')) {
        return false;
    }
    if (entry.is_folder) {
        return name.back() >= '0' && name.back() <= '9';
    }
    return std::any_of(std::begin(kEndings), std::end(kEndings),
                       [&](std::string_view ending) { return name.ends_with(ending); });
}

}  // namespace

std::optional<FolderEntry> newest_checkpoint(const std::vector<FolderEntry>& entries) {
    std::optional<FolderEntry> newest;
    for (const FolderEntry& entry : entries) {
        const bool is_newer = !newest || std::tie(entry.changed_ns, entry.name) >
                                             std::tie(newest->changed_ns, newest->name);
        if (is_newer && looks_like_checkpoint(entry)) {
            newest = entry;
        }
    }
    return newest;
}

}  // namespace ddprun::agent
