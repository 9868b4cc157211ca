#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/os/unique_fd.hpp"
#include "base/result.hpp"

/// The names in a folder of checkpoints, and how one takes another's place. Blocking.
namespace ddprun::worker {

/// More entries than any training leaves; a folder with more is not listed.
constexpr std::size_t kFolderEntriesMax = 100'000;

/// "step-000000000042".
[[nodiscard]] std::string step_folder_name(std::int64_t step);
/// The step of a name that step_folder_name() gives; nothing for all others.
[[nodiscard]] std::optional<std::int64_t> step_of_folder_name(std::string_view name);

/// Endings of names that readers ignore. A .partial folder is unfinished or about to go; a
/// .replaced one is a complete checkpoint whose place is just being taken.
constexpr std::string_view kPartialEnding = ".partial";
constexpr std::string_view kReplacedEnding = ".replaced";
/// ".step-000000000042.<16 random digits><ending>"
[[nodiscard]] std::string aside_name(std::int64_t step, std::string_view ending);
/// The step of a name that aside_name() gives with that ending.
[[nodiscard]] std::optional<std::int64_t> step_of_aside_name(std::string_view name,
                                                             std::string_view ending);

/// Creates `dir` and what is missing above it, each synced into its parent; opens it.
[[nodiscard]] Result<UniqueFd> open_or_create_folder(const std::string& dir);
/// Syncs the names in a folder. A file system that syncs no folders (9p, some of FUSE: EINVAL,
/// ENOTSUP) is passed over: after a loss of power a name may be missing there.
[[nodiscard]] std::optional<Error> sync_folder(int fd, const std::string& dir);
/// Opens an existing folder.
[[nodiscard]] Result<UniqueFd> open_folder(const std::string& dir);

/// All names in it but "." and "..", in no order.
[[nodiscard]] Result<std::vector<std::string>> list_names(const std::string& dir);

/// Whether the file system may be asked to exchange two names at once.
enum class Exchange { IfPossible, Never };

/// How `put_in_place` found things: where the replaced one is now, if there was one.
struct PutInPlace {
    std::string replaced;  ///< its name aside; empty if the place was free
};

/// Renames the folder `from` to the checkpoint name of `step`. An older folder of that name is then
/// called `replaced`. With an exchange there is no moment without a complete one in the place;
/// without, remove_leftovers() brings the old one back after a crash in between. On failure all is
/// as before.
[[nodiscard]] Result<PutInPlace> put_in_place(int dir_fd, const std::string& from,
                                              std::int64_t step, Exchange exchange);
/// The inverse, after a failure behind it; as far as that works.
void take_back(int dir_fd, const std::string& from, std::int64_t step, const PutInPlace& put);

/// Removes a file or a folder with all it holds; follows no links. True if it is gone.
bool remove_all_of(const std::string& path);

}  // namespace ddprun::worker
