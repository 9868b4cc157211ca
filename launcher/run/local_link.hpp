#pragma once

#include <functional>
#include <string>

#include <boost/asio/io_context.hpp>

#include "base/limits.hpp"
#include "base/os/deadline_timer.hpp"
#include "base/rng.hpp"
#include "base/tagged.hpp"
#include "rendezvous/client/link.hpp"
#include "rendezvous/host/job_host.hpp"

namespace ddprun::launcher {

/// The Link of a single-node job: the Coordinator lives in this process and is told things by
/// value. It needs no socket, secret or lease. One thread, that of `io`, which runs nothing any
/// more once this is destroyed.
class LocalLink final : public rdzv::Link {
public:
    LocalLink(boost::asio::io_context& io, JobId job, Limits limits, Rng rng);
    LocalLink(const LocalLink&) = delete;
    LocalLink& operator=(const LocalLink&) = delete;

    void start(rdzv::LinkEvents events) override;
    void send(const rdzv::AgentMessage& message) override;
    void obey(const rdzv::OperatorOrder& order, const std::string& from,
              OrderAnswer answer) override;
    void drop(const std::string& why) override;
    void stop(std::function<void()> done) override;

private:
    void carry_out(const rdzv::HostEffects& wanted);
    void wake_up();

    boost::asio::io_context& io_;
    DeadlineTimer timer_;
    rdzv::JobHost host_;
    rdzv::LinkEvents events_;
    bool is_running_ = false;
};

}  // namespace ddprun::launcher
