#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <boost/asio/io_context.hpp>

#include "base/instant.hpp"
#include "base/limits.hpp"
#include "base/os/deadline_timer.hpp"
#include "base/result.hpp"
#include "base/tagged.hpp"
#include "rendezvous/server/jobs.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::rdzv {

/// Logs and stacks of the workers of jobs, for readers: has their nodes send them, by turns in the
/// order of ranks, or all at once if they are followed. At most one piece of each node waits here
/// until it is taken. Nodes send nothing while no reader asks. On the thread of `io`; `jobs`
/// outlives it.
class WorkersReading {
public:
    WorkersReading(boost::asio::io_context& io, Jobs& jobs, const Limits& limits, NewsHooks hooks);

    /// Names what is read from now on. NotFound: no node of that job can be read;
    /// Unreachable: Limits::readers_max read already.
    [[nodiscard]] Result<std::uint64_t> begin(const JobId& job, const ReadWorkers& question);

    /// Text that came since the last take(); empty: none so far. Null: that was all.
    [[nodiscard]] std::optional<std::string> take(std::uint64_t reading);

    /// The reader takes no more pieces.
    void end(std::uint64_t reading);

    /// Takes a piece from the node on that connection.
    void hear(ConnectionId connection, const WorkersRead& piece);
    /// No node is on it any more.
    void ended(ConnectionId connection);
    /// The run of a job has changed: who follows reads new nodes, too.
    void stepped(const JobId& job, const Run* run);

    void stop();

private:
    /// Kept by its host's name: the run may not know the connection any more when it ends.
    using Named = std::pair<ConnectionId, std::string>;

    struct Reading {
        JobId job;
        ReadWorkers question;
        std::deque<Named> left;                    ///< to be read in turn
        std::map<ConnectionId, std::string> open;  ///< are read now
        std::set<ConnectionId> owed;               ///< of these: have sent a piece, not taken yet
        std::set<ConnectionId> met;                ///< of who follows: all that were read
        std::string run_looked_at;                 ///< by who follows: its token
        std::uint64_t connects_seen = 0;           ///< of it, then
        std::string waiting;                       ///< to be taken
        Instant answer_by{};                       ///< in turn
    };

    /// In the order of ranks; who has none comes last.
    [[nodiscard]] static std::deque<Named> nodes_of(const Run& run, const ReadWorkers& question);
    void open_next(Reading& reading);
    void close(Reading& reading, ConnectionId node, const std::string& why);
    void arm();
    void judge();

    Jobs& jobs_;
    Limits limits_;
    NewsHooks hooks_;
    std::map<std::uint64_t, Reading> readings_;
    std::uint64_t last_ = 0;
    DeadlineTimer timer_;
};

}  // namespace ddprun::rdzv
