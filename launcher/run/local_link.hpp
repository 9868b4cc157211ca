#pragma once

#include <functional>
#include <memory>

#include <boost/asio/io_context.hpp>

#include "base/limits.hpp"
#include "base/rng.hpp"
#include "base/tagged.hpp"
#include "rendezvous/client/link.hpp"

namespace ddprun::launcher {

/// The Link of a single-node job: the Coordinator lives in this process and is told things by
/// value. It needs no socket, secret or lease. One thread, that of `io`.
class LocalLink final : public rdzv::Link {
public:
    LocalLink(boost::asio::io_context& io, JobId job, Limits limits, Rng rng);
    ~LocalLink() override;
    LocalLink(const LocalLink&) = delete;
    LocalLink& operator=(const LocalLink&) = delete;

    void start(rdzv::LinkEvents events) override;
    void send(const rdzv::AgentMessage& message) override;
    void drop(const std::string& why) override;
    void stop(std::function<void()> done) override;

private:
    class Impl;
    std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun::launcher
