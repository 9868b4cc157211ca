#pragma once

#include <functional>

#include <boost/asio/io_context.hpp>

#include "base/instant.hpp"
#include "base/os/deadline_timer.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::agent {

/// Tells the rendezvous how far the workers are, as often and as long as it wants to hear that. On
/// the agent's thread; outlives the run of the loop.
class ProgressTeller {
public:
    /// `tell` reads the progress and sends it.
    ProgressTeller(boost::asio::io_context& io, std::function<void()> tell);

    void hear(const rdzv::Watch& watch);
    void stop();

private:
    void turn();

    std::function<void()> tell_;
    DeadlineTimer timer_;
    Milliseconds interval_{};
    Instant until_{};
    bool is_stopped_ = false;
};

}  // namespace ddprun::agent
