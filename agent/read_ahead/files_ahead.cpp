#include "agent/read_ahead/files_ahead.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <utility>

#include "agent/read_ahead/newest_entry.hpp"
#include "base/os/unique_fd.hpp"
#include "worker_runtime/checkpoint/checkpoint_folder.hpp"
#include "worker_runtime/checkpoint/folder.hpp"

namespace ddprun::agent {

namespace {

struct Found {
    bool is_folder = false;
    std::int64_t changed_ns = 0;
};

/// A regular file or a folder; anything else is nothing.
std::optional<Found> look_at(const std::string& path, int flags) {
    struct stat status {};
    if (fstatat(AT_FDCWD, path.c_str(), &status, flags) != 0 ||
        (!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode))) {
        return std::nullopt;
    }
    const auto since_1970 = std::chrono::seconds(status.st_mtim.tv_sec) +
                            std::chrono::nanoseconds(status.st_mtim.tv_nsec);
    return Found{.is_folder = S_ISDIR(status.st_mode), .changed_ns = since_1970.count()};
}

std::vector<std::string> sorted_names(const std::string& folder) {
    Result<std::vector<std::string>> names = worker::list_names(folder);
    if (!names) {
        return {};
    }
    std::sort(names->begin(), names->end());
    return *std::move(names);
}

void add_files(const std::string& folder, int folders_deep, std::size_t files_max,
               std::vector<std::string>& files) {
    for (const std::string& name : sorted_names(folder)) {
        if (files.size() >= files_max) {
            return;
        }
        const std::string path = folder + "/" + name;
        const std::optional<Found> found = look_at(path, AT_SYMLINK_NOFOLLOW);
        if (found && !found->is_folder) {
            files.push_back(path);
        } else if (found && folders_deep > 0) {
            add_files(path, folders_deep - 1, files_max, files);
        }
    }
}

/// Returns the files of the worker runtime's newest checkpoint; none: there is none.
std::optional<std::vector<std::string>> files_of_runtime(const std::string& place) {
    const Result<std::vector<std::int64_t>> steps = worker::list_checkpoints(place);
    if (!steps || steps->empty()) {
        return std::nullopt;
    }
    for (const std::int64_t step : *steps) {
        if (Result<std::vector<std::string>> files = worker::files_of_checkpoint(place, step)) {
            return *std::move(files);
        }
    }
    return std::vector<std::string>();
}

}  // namespace

std::vector<std::string> files_ahead(const std::string& place, const ReadAheadLimits& limits) {
    const std::optional<Found> found = look_at(place, 0);
    if (!found) {
        return {};
    }
    if (!found->is_folder) {
        return {place};
    }
    if (std::optional<std::vector<std::string>> files = files_of_runtime(place)) {
        files->resize(std::min(files->size(), limits.read_ahead_files_max));
        return *std::move(files);
    }
    std::vector<FolderEntry> entries;
    for (std::string& name : sorted_names(place)) {
        if (const auto entry = look_at(place + "/" + name, AT_SYMLINK_NOFOLLOW)) {
            entries.push_back({.name = std::move(name),
                               .is_folder = entry->is_folder,
                               .changed_ns = entry->changed_ns});
        }
    }
    const std::optional<FolderEntry> newest = newest_checkpoint(entries);
    std::vector<std::string> files;
    if (newest && newest->is_folder) {
        add_files(place + "/" + newest->name, limits.read_ahead_folders_deep,
                  limits.read_ahead_files_max, files);
    } else if (newest) {
        files.push_back(place + "/" + newest->name);
    }
    return files;
}

std::uint64_t read_ahead(const std::string& path, std::uint64_t bytes_max,
                         const ReadAheadLimits& limits) {
    // A device may do something when it is opened, and a pipe would wait.
    const std::optional<Found> found = look_at(path, 0);
    if (!found || found->is_folder) {
        return 0;
    }
    const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    struct stat status {};
    if (!file.is_open() || fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
        return 0;
    }
    const std::uint64_t bytes = std::min(static_cast<std::uint64_t>(status.st_size), bytes_max);
    // Read, not only asked for by POSIX_FADV_WILLNEED: that is cut to the disk's window, brings
    // small pages, which take longer to copy, and who reads beside it has to wait in its queue.
    (void)posix_fadvise(file.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
    std::vector<char> piece(limits.read_ahead_piece);
    std::uint64_t at = 0;
    while (at < bytes) {
        const auto wanted =
            static_cast<std::size_t>(std::min<std::uint64_t>(bytes - at, piece.size()));
        const ssize_t got = read(file.get(), piece.data(), wanted);
        if (got <= 0) {
            return at;
        }
        at += static_cast<std::uint64_t>(got);
    }
    return bytes;
}

}  // namespace ddprun::agent
