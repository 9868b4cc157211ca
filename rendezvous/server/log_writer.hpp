#pragma once

#include <memory>
#include <string_view>
#include <thread>

#include "base/limits.hpp"

namespace ddprun::rdzv {

/// Writes a program's log on a thread of its own, so that a reader that has stopped, or a disk that
/// hangs, never blocks the loop. Up to Limits::log_backlog_bytes_max wait for the reader. Newer
/// lines are dropped, and a line in their place says how many. Methods may be called by any thread.
class LogWriter {
public:
    /// Writes to a duplicate of `fd`, which stays as it is: it may be shared with others.
    LogWriter(int fd, const Limits& limits);
    /// Writes what is left, for at most Limits::log_flush_timeout.
    ~LogWriter();
    LogWriter(const LogWriter&) = delete;
    LogWriter& operator=(const LogWriter&) = delete;

    /// Queues whole lines, with their newlines. Returns at once.
    void write(std::string_view lines);

    /// Waits until all that was queued is written. False: Limits::log_flush_timeout is over.
    /// Async-signal-safe.
    bool flush() const;

private:
    struct State;
    std::shared_ptr<State> state_;  ///< the thread's too, which may have to be left in a write
    std::thread thread_;
};

/// From here on, until `log` is gone, abort() flushes it first.
void flush_at_abort(const LogWriter& log);

}  // namespace ddprun::rdzv
