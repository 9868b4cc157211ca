#pragma once

#include <csignal>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>

#include "base/instant.hpp"
#include "base/os/deadline_timer.hpp"
#include "base/os/start_program.hpp"
#include "base/result.hpp"

namespace ddprun {

/// One helper program at a time, as a child of this process that is no worker's. It is killed with
/// all of its group when its time, if it has one, is up, and when the Helper goes; it is killed,
/// too, when the thread that has started it ends. Owned and called by one thread, that of `io`,
/// which outlives it.
class Helper {
public:
    struct Events {
        /// It was started.
        std::function<void(int pid)> on_child;
        /// How it has ended; none: its time was up.
        std::function<void(std::optional<siginfo_t> end)> on_end;
    };

    Helper(boost::asio::io_context& io, Events events);
    ~Helper() { cancel(); }
    Helper(const Helper&) = delete;
    Helper& operator=(const Helper&) = delete;

    /// Starts `spec`, which has a session of its own, in place of what runs; answered by one
    /// on_end, never at once.
    [[nodiscard]] Result<void> start(ProgramSpec spec, std::optional<Milliseconds> timeout);

    /// Kills what runs; there is no on_end any more.
    void cancel();

    /// True if one that was killed is still there: something in the kernel does not let it go.
    [[nodiscard]] bool is_stuck() const { return !run_ && *unreaped_ > 0; }

private:
    struct Run;

    boost::asio::io_context& io_;
    DeadlineTimer deadline_;
    Events events_;
    std::shared_ptr<Run> run_;  ///< none: none runs; until it is reaped it holds itself
    std::shared_ptr<int> unreaped_ = std::make_shared<int>(0);  ///< it, and those that were killed
};

/// Describes how a program that had `timeout` failed, by its end as Helper reports it: "was killed
/// by SIGKILL", "took longer than 10 s". Returns an empty text if the program has succeeded.
[[nodiscard]] std::string fault_of(const std::optional<siginfo_t>& end, Milliseconds timeout);

}  // namespace ddprun
