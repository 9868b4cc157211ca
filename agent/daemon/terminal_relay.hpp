#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include "agent/daemon/signal_watch.hpp"
#include "agent/output/typed_keys.hpp"
#include "base/limits.hpp"
#include "base/os/terminal_modes.hpp"
#include "base/os/unique_fd.hpp"
#include "base/tagged.hpp"

namespace ddprun::agent {

/// Types the keys that come from ddprun's terminal to the worker that has it. That terminal is raw
/// while this process is in its foreground and the worker lives, so that keys mean what they mean
/// to the worker's own terminal; else it is as it was. WorkerOutput shows the worker's output.
/// Owned and called by the agent's thread.
class TerminalRelay {
public:
    struct Events {
        std::function<void(const TerminalModes& before, const TerminalModes& raw)> on_raw;
        std::function<void()> on_interrupt;  ///< Ctrl-C for ddprun itself
        std::function<void()> on_continued;  ///< after a stop; the window may have changed
        /// Whether this worker is asked by ddprun to save and leave, and needs no SIGINT.
        std::function<bool(LocalRank)> is_interrupt_ours;
        std::function<void(const std::string&)> say;
    };

    /// `terminal` is a descriptor of ddprun's terminal, to be read.
    TerminalRelay(boost::asio::io_context& io, int terminal, const Limits& limits, Events events);
    ~TerminalRelay();
    TerminalRelay(const TerminalRelay&) = delete;
    TerminalRelay& operator=(const TerminalRelay&) = delete;

    /// From now on to this worker.
    void begin(Generation generation, LocalRank local_rank, UniqueFd keyboard);

    /// How many bytes wait for it does not matter: the worker has ended. The terminal is as before.
    void end();

    [[nodiscard]] bool is_with(Generation generation, LocalRank local_rank) const;

    /// TypedKeys::cause_of() the worker that it is with.
    [[nodiscard]] int cause_of(std::optional<int> exit_code, std::optional<int> signal) const {
        return keys_.cause_of(exit_code, signal);
    }

private:
    struct Partner {
        Generation generation;
        LocalRank local_rank;
    };

    [[nodiscard]] bool is_in_foreground() const;
    void take();
    void give_back();
    void wait_for_keys();
    void on_keys();
    void type(std::string_view bytes);
    void write_waiting();
    void on_job_control(int signal);
    void stop_like_others();

    const int terminal_;
    const std::size_t typed_bytes_max_;
    Events events_;
    TypedKeys keys_;
    std::optional<Partner> partner_;
    std::optional<TerminalModes> before_;          ///< of the terminal, while it is raw
    std::optional<TerminalModes> raw_;             ///< as it was made
    boost::asio::posix::stream_descriptor typed_;  ///< an epoll instance that watches the terminal
    boost::asio::posix::stream_descriptor keyboard_;
    std::string waiting_;  ///< for the worker's terminal to take it
    bool is_waiting_for_keys_ = false;
    bool is_waiting_to_write_ = false;
    SignalWatch job_control_;
};

}  // namespace ddprun::agent
