#include "tests/bench/agent_crowd_agent.hpp"

#include <chrono>
#include <utility>
#include <variant>

#include "base/overloaded.hpp"

namespace ddprun::test {

using Clock = std::chrono::steady_clock;

namespace {

constexpr std::chrono::milliseconds kStep{50};

}  // namespace

CrowdAgent::CrowdAgent(boost::asio::io_context& io, agent::SupervisorOptions options,
                       rdzv::ClientOptions client, std::uint16_t store_port,
                       const CrowdEvents& events)
    : supervisor_(std::move(options)),
      link_(io, std::move(client)),
      timer_(io, [this] { feed(agent::Tick{}); }),
      teller_(io, [this] { tell_progress(); }),
      store_port_(store_port),
      events_(events) {}

void CrowdAgent::start() {
    rdzv::LinkEvents events;
    events.on_up = [this](std::string address, rdzv::Endpoint rendezvous) {
        is_up_ = true;
        feed(agent::LinkUp{std::move(address), std::move(rendezvous)});
    };
    events.on_down = [this](std::string why, bool is_final) {
        if (std::exchange(is_up_, false)) {
            events_.on_link_down();
        }
        feed(agent::LinkDown{std::move(why), is_final});
    };
    events.on_message = [this](rdzv::RendezvousMessage message) {
        if (const auto* start = std::get_if<rdzv::Start>(&message)) {
            events_.on_start(*start);
        } else if (const auto* watch = std::get_if<rdzv::Watch>(&message)) {
            teller_.hear(*watch);
        } else if (const auto* answer = std::get_if<rdzv::Acknowledge>(&message)) {
            if (answer->sequence == beat_) {
                events_.on_beat_answered(Clock::now() - beat_at_);
            }
        }
        feed(agent::FromRendezvous{std::move(message)});
    };
    link_.start(std::move(events));
    feed(agent::Tick{});
}

void CrowdAgent::fail_worker() {
    rdzv::Evidence evidence;
    evidence.exit_code = 1;
    evidence.program = "worker";
    end_worker(generation_, LocalRank(0), evidence);
}

void CrowdAgent::end_worker(Generation generation, LocalRank local_rank,
                            const rdzv::Evidence& evidence) {
    if (living_.erase(local_rank) == 1) {
        feed(agent::WorkerExited{generation, local_rank, evidence});
    }
}

void CrowdAgent::feed(agent::Input input) {
    inputs_.push_back(std::move(input));
    if (is_feeding_ || has_ended_) {
        return;
    }
    is_feeding_ = true;
    while (!inputs_.empty() && !has_ended_) {
        const agent::Input next = std::move(inputs_.front());
        inputs_.pop_front();
        agent::Effects effects;
        supervisor_.step(std::chrono::steady_clock::now(), next, effects);
        for (const agent::Effect& effect : effects) {
            carry_out(effect);
        }
    }
    is_feeding_ = false;
    timer_.set(has_ended_ ? std::nullopt : supervisor_.next_deadline());
}

void CrowdAgent::carry_out(const agent::Effect& effect) {
    std::visit(Overloaded{
                   [this](const agent::SendToRendezvous& e) { send(e.message); },
                   [this](const agent::OpenStore& e) {
                       feed(agent::StoreOpened{{.host = e.host, .port = store_port_}});
                   },
                   [this](const agent::StartWorkers& e) {
                       generation_ = e.generation;
                       first_step_ = Clock::now();
                       for (const agent::WorkerSpec& spec : e.workers) {
                           living_.insert(spec.local_rank);
                       }
                   },
                   [this](const agent::SignalWorkers& e) {
                       rdzv::Evidence evidence;
                       evidence.signal = e.signal;
                       for (const LocalRank local_rank : std::set<LocalRank>(living_)) {
                           end_worker(e.generation, local_rank, evidence);
                       }
                   },
                   [this](const agent::CollectLastWords& e) {
                       feed(agent::LastWords{e.generation, e.local_rank, "went wrong\n", {}});
                   },
                   [this](const agent::EmptyGeneration& e) {
                       living_.clear();
                       feed(agent::Emptied{e.generation});
                   },
                   [this](const agent::Exit& e) {
                       has_ended_ = true;
                       timer_.set(std::nullopt);
                       teller_.stop();
                       link_.stop([this, code = e.code] { events_.on_exit(code); });
                   },
                   [](const auto&) {},
               },
               effect);
}

void CrowdAgent::send(const rdzv::AgentMessage& message) {
    if (const auto* beat = std::get_if<rdzv::Beat>(&message)) {
        beat_ = beat->sequence;
        beat_at_ = Clock::now();
    }
    link_.send(message);
}

/// Workers that make 20 steps a second, and have all figures.
void CrowdAgent::tell_progress() {
    const auto steps = static_cast<std::uint64_t>((Clock::now() - first_step_) / kStep);
    rdzv::Progress progress{.generation = generation_, .ranks = {}, .memory = {}};
    for (const LocalRank local_rank : living_) {
        rdzv::RankProgress rank;
        rank.local_rank = local_rank;
        rank.phase = rdzv::RankPhase::Training;
        rank.step = steps;
        rank.step_age_ms = 7;
        rank.step_ns = std::chrono::nanoseconds(kStep).count();
        rank.own_ns = *rank.step_ns * 9 / 10;
        rank.memory_bytes = 3'141'592'653;
        rank.memory_peak_bytes = 3'541'592'653;
        rank.gpu_permille = 970;
        rank.gpu_memory_bytes = 71'415'926'535;
        rank.gpu_memory_total_bytes = 85'899'345'920;
        rank.gpu_milliwatts = 612'000;
        progress.ranks.push_back(rank);
    }
    link_.send(progress);
}

}  // namespace ddprun::test
