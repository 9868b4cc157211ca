#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "agent/contract/output_options.hpp"
#include "base/os/unique_fd.hpp"
#include "base/result.hpp"

namespace ddprun::agent {

/// A file that is appended to, also if it existed before. Before it would grow beyond its limit, it
/// is renamed to `<path>.1`, the next one to `<path>.2` and so on, the highest number being the
/// newest, and `path` begins anew. Each rotation cuts a written piece between its lines where that
/// is possible.
class LogFile {
public:
    /// Makes the file if it is missing. Not through a symbolic link.
    [[nodiscard]] static Result<LogFile> open(const std::string& path, const LogRotation& rotation);

    /// Writes all of `bytes`; on failure some of them may be written. If the full file cannot be
    /// given another name, or no new one can be made, it grows on, and this fails with
    /// LimitExceeded after having written everything; the next call tries again.
    [[nodiscard]] Result<void> append(std::string_view bytes) { return take(bytes); }

    /// The same; leaves in `bytes` what is not written.
    [[nodiscard]] Result<void> take(std::string_view& bytes);

private:
    LogFile(UniqueFd file, std::string path, const LogRotation& rotation);

    /// How many of `bytes` still belong in this file; 0: it is full.
    [[nodiscard]] std::size_t room_for(std::string_view bytes) const;
    [[nodiscard]] Result<void> rotate();
    [[nodiscard]] Error grows_on(const Error& why) const;

    UniqueFd file_;
    std::string path_;
    LogRotation rotation_;
    std::uint64_t size_ = 0;
    std::uint64_t last_number_ = 0;  ///< of the newest full file
};

}  // namespace ddprun::agent
