#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>

#include "base/limits.hpp"
#include "base/os/deadline_timer.hpp"
#include "base/os/helper.hpp"
#include "base/os/unique_fd.hpp"
#include "base/result.hpp"

namespace ddprun::launcher {

/// Removes what --log-keep says while the job runs, by a ddpctl of its own: a log folder may have
/// terabytes, or hang. Owned and called by the agent's thread; outlives the run of `io`.
class OldRuns {
public:
    struct Events {
        std::function<void(const std::string& line)> say;
        std::function<void(int pid)> on_child;  ///< one that is no worker's was started
    };

    OldRuns(boost::asio::io_context& io, const Limits& limits, Events events);

    /// Removes from `log_dir` all runs but the newest `kept` ones and `run`, which need not exist
    /// yet. Says what could not be removed. Called once.
    void begin(const std::string& log_dir, const std::string& run, std::size_t kept);

    /// Calls `on_done` when that is over, at once if nothing is under way, and after
    /// Limits::clean_end_timeout at the latest: what is left then goes the next time.
    void finish(std::function<void()> on_done);

private:
    [[nodiscard]] Result<void> start(const std::string& log_dir, const std::string& run,
                                     std::size_t kept);
    void ended(const std::optional<siginfo_t>& end);
    [[nodiscard]] std::string first_line() const;
    void warn(const std::string& why);

    const Limits limits_;
    Events events_;
    Helper program_;
    DeadlineTimer deadline_;
    UniqueFd said_;  ///< ddpctl's errors; a file, so that no process needs to read it
    bool is_under_way_ = false;
    std::function<void()> on_done_;
};

}  // namespace ddprun::launcher
