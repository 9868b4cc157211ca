#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/instant.hpp"
#include "base/tagged.hpp"

namespace ddprun::agent {

/// The worker that wrote a line, for readers of the lines of many workers.
struct LineOrigin {
    Rank rank;
    LocalRank local_rank;
    Generation generation;
};

/// Console lines as objects of JSON, one a line, for programs that gather logs: `time` (UTC, RFC
/// 3339 with milliseconds, when the line was whole), `host`, `stream` (`stdout`, `stderr`,
/// `output` where these two are merged, or `ddprun` for its own lines), `rank`, `local_rank` and
/// `generation` of a worker, and `message`: the line without its end; what is no UTF-8 in it is
/// replaced.
class JsonLine {
public:
    /// `worker`: none for ddprun's own lines.
    JsonLine(std::string_view hostname, std::string_view stream,
             const std::optional<LineOrigin>& worker);

    /// Appends the object of `message` and a line end. `time`: of the system's clock, since 1970.
    void append(Milliseconds time, std::string_view message, std::string& out) const;

private:
    std::string origin_;  ///< all that is the same in every line of the stream
};

}  // namespace ddprun::agent
