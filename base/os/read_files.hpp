#pragma once

#include <dirent.h>
#include <sys/types.h>

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

/// The first `bytes_max` of a regular file; nothing when it is none or cannot be opened.
[[nodiscard]] std::optional<std::string> read_beginning(const std::string& path,
                                                        std::size_t bytes_max);

/// At most `bytes_max` of an open file, not a pipe, from `from` on: fewer where the file ends, or
/// cannot be read. Its position stays.
[[nodiscard]] std::string read_part(int fd, std::size_t bytes_max, off_t from = 0);

}  // namespace ddprun
