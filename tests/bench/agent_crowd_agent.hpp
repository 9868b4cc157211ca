#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <set>

#include <boost/asio/io_context.hpp>

#include "agent/core/supervisor.hpp"
#include "base/instant.hpp"
#include "base/os/deadline_timer.hpp"
#include "base/tagged.hpp"
#include "rendezvous/client/rendezvous_client.hpp"

namespace ddprun::test {

/// What a crowd hears of its agents; none is called from inside a call of the crowd's.
struct CrowdEvents {
    /// An agent has received Start, not yet acted on.
    std::function<void(const rdzv::Start&)> on_start;
    std::function<void()> on_link_down;
    std::function<void(int exit_code)> on_exit;
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
    void end_worker(Generation generation, LocalRank local_rank, const rdzv::Evidence& evidence);

    agent::Supervisor supervisor_;
    rdzv::RendezvousClient link_;
    DeadlineTimer timer_;
    const std::uint16_t store_port_;
    const CrowdEvents& events_;
    std::deque<agent::Input> inputs_;  ///< bounded: a step answers with one input per effect
    bool is_feeding_ = false;
    bool has_ended_ = false;
    Generation generation_;
    std::set<LocalRank> living_;
};

}  // namespace ddprun::test
