#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include <boost/asio/io_context.hpp>

#include "base/limits.hpp"
#include "base/os/deadline_timer.hpp"
#include "base/result.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::agent {

/// Reads what this node's workers have written, or where they are, on request: by a ddpctl of its
/// own for each, for a log folder may hang and a debugger may take its time. Nothing runs without a
/// request; a piece is answered only when the last one was taken. Owned and called by the agent's
/// thread; outlives the run of `io`.
class WorkersReaders {
public:
    struct Events {
        std::function<void(rdzv::WorkersRead)> answer;
        /// A child of this process that is no worker's was started.
        std::function<void(int pid)> on_child;
    };

    /// `run`: the folder of the run. `host`: is told in each line.
    WorkersReaders(boost::asio::io_context& io, const Limits& limits, std::string run,
                   std::string host, Events events);
    ~WorkersReaders();
    WorkersReaders(const WorkersReaders&) = delete;
    WorkersReaders& operator=(const WorkersReaders&) = delete;

    /// Answered, never at once: more than Limits::readers_max are told so.
    void hear(const rdzv::ReadWorkers& message);
    void hear(const rdzv::ReadOn& message);

    [[nodiscard]] bool has_any() const { return !readers_.empty(); }

    /// The workers have ended: who follows is told the rest. Calls `done` when they have it, at
    /// once if there are none, after Limits::read_end_timeout at the latest.
    void finish(std::function<void()> done);

    /// All readers are gone: what finish() waits for is over.
    void cut_off();

    /// The same, without a word to who waits in finish().
    void stop();

private:
    struct Reader;

    [[nodiscard]] Result<void> start(Reader& reader, const rdzv::ReadWorkers& message);
    void read_next(Reader& reader);
    void send_piece(Reader& reader, bool is_last);
    void remove(std::uint64_t number);
    void end_if_none();

    boost::asio::io_context& io_;
    Limits limits_;
    std::string run_;
    std::string host_;
    Events events_;
    std::map<std::uint64_t, std::shared_ptr<Reader>> readers_;  ///< its handlers hold it, too
    std::function<void()> on_finished_;
    DeadlineTimer finish_deadline_;
};

}  // namespace ddprun::agent
