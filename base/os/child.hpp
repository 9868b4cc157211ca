#pragma once

#include <csignal>
#include <functional>
#include <optional>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>

#include "base/os/start_program.hpp"
#include "base/result.hpp"

namespace ddprun {

/// One program as a child of this process: started, watched, signalled, and reaped exactly once.
/// Works without pidfd too (before Linux 5.3), by SIGCHLD. Owned and called by one thread, that of
/// `io`; outlives what is waited for.
class Child {
public:
    /// How it has ended: si_code and si_status as waitid() has them.
    using OnEnd = std::function<void(const siginfo_t& end)>;

    explicit Child(boost::asio::io_context& io) : io_(io), pidfd_(io), child_signals_(io) {}
    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;

    /// Starts `spec`; none may run. Failure is start_program()'s.
    [[nodiscard]] Result<void> start(const ProgramSpec& spec);

    /// Takes care of a program that was started otherwise; none may run.
    void adopt(StartedProgram started);

    /// 0: none runs, or it has been reaped.
    [[nodiscard]] int pid() const { return pid_; }

    /// Calls `on_end` once, when the child has ended and was reaped, never at once; not after
    /// forget(). Objects that `on_end` captures must live as long as `on_end` may be called.
    void async_wait(OnEnd on_end);

    /// Reaps it if it has ended; none: it runs, or there is none.
    [[nodiscard]] std::optional<siginfo_t> reap();

    /// To it alone, or to the group that it leads: not reaped, its number is its own.
    void signal(int number) const;
    void signal_group(int number) const;

    /// It is neither waited for nor reaped any more.
    void forget();

private:
    boost::asio::io_context& io_;
    boost::asio::posix::stream_descriptor pidfd_;  ///< not open on kernels without
    boost::asio::signal_set child_signals_;        ///< used in its place
    bool has_child_signals_ = false;
    int pid_ = 0;
};

}  // namespace ddprun
