#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "base/os/unique_fd.hpp"
#include "base/result.hpp"
#include "base/tagged.hpp"

namespace ddprun::agent {

/// Makes `path` and its missing parents, 0700.
[[nodiscard]] Result<void> make_folders(const std::string& path);

/// Locks the folder `path` (made if it is missing) for as long as the result lives: who waits for
/// the lock, as `ddpctl logs --follow` does, knows then that this process writes nothing more.
[[nodiscard]] Result<UniqueFd> hold_folder(const std::string& path);

/// Opens `path` to append to it, whatever is in it; makes it if it is missing. Not through a
/// symbolic link.
[[nodiscard]] Result<UniqueFd> open_log(const std::string& path);

/// Writes all of `bytes`; on failure some of them may be written.
[[nodiscard]] Result<void> append_to_log(int fd, std::string_view bytes, const std::string& path);

/// The same; what was written is no longer in `bytes` afterwards.
[[nodiscard]] Result<void> take_into_log(int fd, std::string_view& bytes, const std::string& path);

/// Writes `content` beside `path` and gives it that name: others see all of it or the content from
/// before. Missing folders are made.
[[nodiscard]] Result<void> replace_file(const std::string& path, std::string_view content);

/// The same in a folder that exists, for a file that users whom `mode` leaves out shall never read,
/// whatever has that name now.
[[nodiscard]] Result<void> put_file(const std::string& path, std::string_view content, mode_t mode);

/// Has the file system keep room for `path`, which exists, to become so large. Not all can.
void reserve_file(const std::string& path, std::size_t bytes);

/// Writes `content` over what `path` holds, for a disk that takes no second file: a reader of this
/// moment may see a mixture. The old content stays if the disk has no room even for that.
[[nodiscard]] Result<void> overwrite_file(const std::string& path, std::string_view content);

/// Makes `link` a symbolic link to `target`, in place of an older link.
[[nodiscard]] Result<void> replace_link(const std::string& link, const std::string& target);

/// Makes `<folder>/by-rank/<rank>` a relative link to `log_dir`, in place of an older link.
[[nodiscard]] Result<void> link_by_rank(const std::string& folder, Rank rank,
                                        const std::string& log_dir);

/// The first `bytes_max` bytes of the regular file `path`; empty if there is none.
[[nodiscard]] std::string read_error_file(const std::string& path, std::size_t bytes_max);

}  // namespace ddprun::agent
