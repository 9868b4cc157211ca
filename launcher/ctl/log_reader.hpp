#pragma once

#include <cstddef>
#include <functional>
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

    /// Leaves out all but the last `count` lines of what is there now.
    void skip_to_last(std::size_t count);

    /// Hands over everything that has been written since, piece by piece.
    void read(const std::function<void(std::string_view)>& take);

private:
    /// Opens the next file after the one that was read to its end; false: there is none yet.
    bool open_next();

    std::string path_;
    UniqueFd file_;
};

}  // namespace ddprun::launcher
