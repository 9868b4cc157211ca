#pragma once

#include <memory>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "agent/contract/drain_sources.hpp"
#include "agent/notices/notice_events.hpp"
#include "base/limits.hpp"

namespace ddprun::agent {

/// All that --drain-on names. Owned and called by the agent's thread; outlives the run of `io`.
class DrainNotices {
public:
    DrainNotices(boost::asio::io_context& io, const Limits& limits,
                 const std::vector<DrainSource>& sources, const NoticeEvents& events);

    /// From now on notices come, perhaps the first ones at once.
    void start();

    /// No more come.
    void stop();

private:
    // They do not move: handlers hold references to them.
    std::vector<std::unique_ptr<DrainNotice>> all_;
};

}  // namespace ddprun::agent
