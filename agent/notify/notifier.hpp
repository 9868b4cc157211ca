#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <boost/asio/io_context.hpp>

#include "agent/contract/notify_target.hpp"
#include "agent/notify/delivery.hpp"
#include "agent/notify/notice_queue.hpp"
#include "base/limits.hpp"
#include "base/os/deadline_timer.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::agent {

struct NotifierOptions {
    NotifyTarget target;
    std::string job;
    std::string run;   ///< DDPRUN_RUN_ID
    std::string host;  ///< this one
};

/// Sends the target of --notify what the rendezvous has this node report (docs/notify.md). A
/// failure is a line on the console and nothing else. Owned and called by the agent's thread;
/// outlives the run of `io`.
class Notifier {
public:
    struct Events {
        std::function<void(const std::string& line)> say;
        std::function<void(int pid)> on_child;  ///< one that is no worker's was started
    };

    Notifier(boost::asio::io_context& io, const Limits& limits, NotifierOptions options,
             Events events);
    Notifier(const Notifier&) = delete;
    Notifier& operator=(const Notifier&) = delete;

    void hear(const rdzv::RendezvousMessage& message);

    /// `done` is called once, when all is delivered or given up, at once if it is so already; after
    /// Limits::notices_end_timeout at the latest.
    void finish(std::function<void()> done);

private:
    void pass_on(const rdzv::Happened& happened);
    void go_on();
    void attempt_ended(const std::string& fault);
    void give_up();
    void say(const std::string& what);

    Limits limits_;
    NotifierOptions options_;
    Events events_;
    NoticeQueue queue_;
    std::unique_ptr<Delivery> delivery_;
    DeadlineTimer pause_;
    DeadlineTimer end_;
    std::function<void()> done_;  ///< from finish() on
    std::uint64_t count_ = 0;
    bool is_old_rendezvous_said_ = false;
};

}  // namespace ddprun::agent
