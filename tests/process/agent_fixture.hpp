#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include "agent/daemon/agent.hpp"
#include "rendezvous/client/link.hpp"
#include "tests/process/wanted_containment.hpp"
#include "tests/support/cluster.hpp"

namespace ddprun::agent {

/// Keeps the agent's messages, in order; the test chooses the messages to the agent.
class TestLink final : public rdzv::Link {
public:
    using OnMessage = std::function<void(const rdzv::AgentMessage&)>;

    TestLink(boost::asio::io_context& io, OnMessage on_message)
        : io_(io), on_message_(std::move(on_message)) {}

    void start(rdzv::LinkEvents events) override {
        events_ = std::move(events);
        boost::asio::post(io_, [this] { events_.on_up("127.0.0.1", {}); });
    }
    void send(const rdzv::AgentMessage& message) override { on_message_(message); }
    void obey(const rdzv::OperatorOrder& /*order*/, const std::string& /*from*/,
              OrderAnswer answer) override {
        answer({.fault = rdzv::OrderFault::Conflict, .event = 0, .text = "not here"}, std::nullopt);
    }
    void drop(const std::string& /*why*/) override {}
    void stop(std::function<void()> done) override { boost::asio::post(io_, std::move(done)); }

    void tell(rdzv::RendezvousMessage message) {
        boost::asio::post(io_,
                          [this, message = std::move(message)] { events_.on_message(message); });
    }
    void go_down(std::string why) {
        boost::asio::post(io_, [this, why = std::move(why)] { events_.on_down(why, false); });
    }

private:
    boost::asio::io_context& io_;
    OnMessage on_message_;
    rdzv::LinkEvents events_;
};

/// One worker, `script` for the shell, whose output is logged and not shown.
inline AgentOptions options_for(const test::TempDir& dir, const std::string& script, int console) {
    AgentOptions options;
    rdzv::Join& identity = options.supervisor.identity;
    identity.job = JobId("job");
    identity.node = NodeId("node");
    identity.hostname = "node";
    options.supervisor.command = {"/bin/sh", "-c", script};
    options.supervisor.log_dir = dir / "logs";
    options.supervisor.is_store_at_rendezvous = true;
    options.output.log_root = dir / "logs";
    options.output.console = {{0, {.shows_stdout = false, .shows_stderr = false}}};
    options.output.console_out = console;
    options.output.console_err = console;
    return options;
}

inline KeeperOptions keeper_for_tests() {
    return {.program = {.path = test::Cluster::program("ddprun-keeper")},
            .containment = wanted_containment(),
            .saved_state = SavedProcessState::capture()};
}

}  // namespace ddprun::agent
