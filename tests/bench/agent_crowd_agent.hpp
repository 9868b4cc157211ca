#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <set>

#include <boost/asio/io_context.hpp>

#include "agent/daemon/progress_teller.hpp"
#include "agent/supervise/supervisor.hpp"
#include "base/instant.hpp"
#include "base/os/deadline_timer.hpp"
#include "base/tagged.hpp"
#include "rendezvous/client/rendezvous_client.hpp"

namespace ddprun::test {

/// Callbacks from agents to their crowd, none called from inside a call of the crowd's.
struct CrowdEvents {
    /// An agent has received Start, not yet acted on.
    std::function<void(const rdzv::Start&)> on_start;
    std::function<void()> on_link_down;  ///< of one that was up
    std::function<void(int exit_code)> on_exit;
    /// The daemon's answer to a beat came after so long.
    std::function<void(std::chrono::steady_clock::duration)> on_beat_answered;
};

/// One node without processes: the real supervisor and the real connection; workers and stores
/// exist in name only, start and end at once. One thread; outlives the io_context's last handler.
class CrowdAgent {
public:
    CrowdAgent(boost::asio::io_context& io, agent::SupervisorOptions options,
               rdzv::ClientOptions client, std::uint16_t store_port, const CrowdEvents& events);
    CrowdAgent(const CrowdAgent&) = delete;
    CrowdAgent& operator=(const CrowdAgent&) = delete;

    void start();

    /// Its first worker exits with code 1: WorkerFailed is on its way when this returns.
    void fail_worker();

private:
    void feed(agent::Input input);
    void carry_out(const agent::Effect& effect);
    void send(const rdzv::AgentMessage& message);
    void tell_progress();
    void end_worker(Generation generation, LocalRank local_rank, const rdzv::Evidence& evidence);

    agent::Supervisor supervisor_;
    rdzv::RendezvousClient link_;
    DeadlineTimer timer_;
    agent::ProgressTeller teller_;
    const std::uint16_t store_port_;
    const CrowdEvents& events_;
    std::deque<agent::Input> inputs_;  ///< bounded: a step answers with one input per effect
    bool is_up_ = false;
    bool is_feeding_ = false;
    bool has_ended_ = false;
    Generation generation_;
    std::set<LocalRank> living_;
    std::chrono::steady_clock::time_point first_step_;
    std::uint64_t beat_ = 0;  ///< the last one
    std::chrono::steady_clock::time_point beat_at_;
};

}  // namespace ddprun::test
