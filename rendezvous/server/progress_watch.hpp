#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "base/instant.hpp"
#include "base/limits.hpp"
#include "base/os/deadline_timer.hpp"
#include "base/tagged.hpp"
#include "base/watch_limits.hpp"
#include "rendezvous/events/rank_board.hpp"
#include "rendezvous/server/jobs.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::rdzv {

/// How far the ranks of watched jobs are: has their nodes report it, keeps the last
/// news, and passes them to who follows. WatchLimits::watched_for after the last look() nothing is
/// left of it, and no node reports anything. On the thread of `io`; `jobs` outlives it.
class ProgressWatch {
public:
    ProgressWatch(boost::asio::io_context& io, Jobs& jobs, NewsHooks hooks);

    /// A reader watches `job` now; empty: all jobs.
    void look(const JobId& job);

    /// The same, and calls `answer` when that is judged what nodes have told: within this call if
    /// it was watched before; else when all have told, after progress_interval at the latest.
    /// stop() drops it.
    void look(const JobId& job, std::function<void()> answer);

    /// Takes the progress that the node has told.
    void hear(const JobId& job, ConnectionId connection, const Progress& progress);

    /// The board of its current generation; null: nothing is known.
    [[nodiscard]] const RankBoard* board(const JobId& job) const;

    void stop();

private:
    struct Watched {
        Instant until{};
        RankBoard board;
        std::size_t tellers = 0;  ///< members that report anything, as of the last round
        Generation judged;        ///< of this one all of those had told, or were waited for
        std::map<ConnectionId, Instant> told;  ///< until when each node reports; those of members
        std::set<NodeId> news;                 ///< since the last round
        std::set<NodeId> passing;              ///< the news of this round, in pieces
    };

    /// A reader that waits for the first news.
    struct Looking {
        JobId job;
        std::function<void()> answer;
        Instant until{};
    };

    void turn();
    void begin_round(Instant now);
    template <typename Visitor>
    void visit_running(const JobId& wanted, Visitor visitor) const;
    [[nodiscard]] static bool is_complete(const Watched& watched, const Run& run);
    [[nodiscard]] bool is_judged(const JobId& wanted) const;
    void answer_those_due(Instant now);
    [[nodiscard]] bool pass_news(const JobId& job, Watched& watched, std::size_t& lines_left);
    [[nodiscard]] bool tell_nodes(Instant now, Watched& watched, const Run& run);
    [[nodiscard]] Milliseconds interval_of(const Run& run) const;

    Jobs& jobs_;
    NewsHooks hooks_;
    WatchLimits limits_;
    std::map<JobId, Watched> watched_;
    std::vector<Looking> looking_;  ///< at most one of each connection
    DeadlineTimer timer_;           ///< set while anything is watched
    bool is_round_begun_ = false;   ///< else the next turn begins one
    bool has_passed_ = false;       ///< something, in this round
    bool is_stopped_ = false;
};

}  // namespace ddprun::rdzv
