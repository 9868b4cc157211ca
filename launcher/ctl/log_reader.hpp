#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/os/unique_fd.hpp"

namespace ddprun::launcher {

/// Reads one log of a worker from its oldest full file on, and goes on where it has stopped each
/// time it is asked: through full files that are set aside meanwhile.
class LogReader {
public:
    /// `path`: the log that is written, which need not exist yet.
    explicit LogReader(std::string path);

    /// Leaves out all but the last `count` lines of the logs as they are now, in full files too.
    void skip_to_last(std::size_t count);

    /// Hands over everything that has been written since, piece by piece.
    void read(const std::function<void(std::string_view)>& take);

private:
    /// Opens the full file before the open one, which is full file `number`, or the log itself if
    /// that is none; before the log if no file is open. False: there is none, nothing has changed.
    bool open_previous(std::optional<std::uint64_t>& number);
    [[nodiscard]] std::string name_of_full(std::uint64_t number) const;
    /// Opens the next file after the one that was read to its end; false: there is none yet.
    bool open_next();

    std::string path_;
    UniqueFd file_;
};

}  // namespace ddprun::launcher
