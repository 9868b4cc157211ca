#pragma once

#include <dirent.h>

#include <memory>
#include <optional>
#include <string>

namespace ddprun {

struct CloseDirectory {
    void operator()(DIR* directory) const { closedir(directory); }
};
using Directory = std::unique_ptr<DIR, CloseDirectory>;

/// All of a file of /proc; nothing when it cannot be opened.
[[nodiscard]] std::optional<std::string> read_whole(const std::string& path);

}  // namespace ddprun
