#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "base/limits.hpp"
#include "base/os/unique_fd.hpp"
#include "base/result.hpp"

namespace ddprun::agent {

/// `<log-dir>/<job>_<8 hex>/events.jsonl`: the events of a run, a line each, one write() for each.
/// Until the folder of the run exists, and while nothing can be written, they are held. A line of
/// which the disk took a part only is ended, and written anew. On the output thread.
class EventFile {
public:
    /// Touches nothing. `folder` may be empty: then nothing is ever kept.
    EventFile(std::string folder, const Limits& limits)
        : folder_(std::move(folder)), limits_(limits) {}

    /// The folder exists: writes what was held. Not for a second time.
    [[nodiscard]] Result<void> begin();

    /// Writes what is held, and `line`. Lines that cannot be written are held for the next call, at
    /// most Limits::events_waiting_max; the oldest go first. Fails once for a full file, to which
    /// nothing more is written.
    [[nodiscard]] Result<void> add(std::string line);

private:
    [[nodiscard]] Result<void> write_held();
    [[nodiscard]] Result<void> write(const std::string& line);

    std::string folder_;
    Limits limits_;
    std::deque<std::string> held_;
    UniqueFd file_;
    std::uint64_t written_ = 0;
    bool has_begun_ = false;
    bool is_full_ = false;
    bool is_line_open_ = false;  ///< the file ends with a part of one
};

/// The name of that file in the folder of its run.
inline constexpr const char* kEventsName = "events.jsonl";

}  // namespace ddprun::agent
