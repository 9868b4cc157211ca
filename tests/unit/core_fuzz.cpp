// Goal: no sequence of inputs, sensible or not, breaks an invariant or makes a deadline repeat, and
// once the nodes behave the run ends. Method: seeds choose a job and thousands of inputs from six
// agents that crash, lie, lose messages and repeat themselves; after every step the state is
// checked; in the end each agent does what is asked for and a verdict must come.
#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "rendezvous/core/coordinator.hpp"
#include "rendezvous/core/run.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/run_flaw.hpp"

namespace ddprun::rdzv {

namespace {

struct FuzzAgent {
    Join identity;
    std::string token;
    std::optional<ConnectionId> connection;
    std::optional<HeldGeneration> held;
    int slots_held = 0;
    bool is_gone = false;  ///< was given a verdict, released or refused, and left
    std::deque<RendezvousMessage> inbox;
};

class Fuzz {
public:
    explicit Fuzz(std::uint64_t seed)
        : rng_(seed), options_(choose_options()), coordinator_(JobId("job"), options_, Rng(seed)) {
        JobSettings settings;
        settings.min_nodes = 1 + static_cast<int>(rng_.below(3));
        settings.max_nodes = settings.min_nodes + static_cast<int>(rng_.below(3));
        if (rng_.chance(1, 4) && settings.min_nodes < settings.max_nodes) {
            settings.node_sizes = {settings.min_nodes, settings.max_nodes};
        } else if (rng_.chance(1, 4)) {
            settings.node_unit = 2;
            settings.min_nodes = 2;
            settings.max_nodes = 4;
        }
        settings.max_restarts = static_cast<int>(rng_.below(6));
        settings.max_node_losses = static_cast<int>(rng_.below(8)) - 1;
        settings.grow = rng_.chance(3, 4);
        settings.memory_replicas = static_cast<int>(rng_.below(2));
        const auto some = [this] { return Milliseconds(rng_.below(4) * rng_.below(4000)); };
        settings.patience = some();
        settings.join_timeout = some() + some();
        settings.grow_delay = some();
        settings.failure_grace = some();
        settings.shutdown_timeout = some();
        for (int i = 0; i < 6; ++i) {
            Join& join = agents_.emplace_back().identity;
            join.job = JobId("job");
            join.node = NodeId(fmt::format("n{}", i));
            join.hostname = fmt::format("host{}", i);
            join.slots = 1 + static_cast<int>(rng_.below(3));
            join.settings = settings;
            if (rng_.chance(1, 4)) {
                join.node_rank = static_cast<int>(rng_.below(6));
            }
        }
    }

    /// The first broken rule, or empty.
    std::string run(int steps) {
        for (int i = 0; i < steps && problem_.empty(); ++i) {
            disturb();
        }
        // No agent owns connections that garbage made up: without leases only an end removes them.
        for (std::uint64_t i = 0; i <= connections_ + 3 && problem_.empty(); ++i) {
            const bool is_owned = std::any_of(
                agents_.begin(), agents_.end(),
                [i](const FuzzAgent& agent) { return agent.connection == ConnectionId(i); });
            if (!is_owned) {
                step(ConnectionEnded{ConnectionId(i), false});
            }
        }
        // Two lives of a run at most: the present one and one that latecomers open.
        for (int i = 0; i < 6000 && problem_.empty() && !is_over(); ++i) {
            behave();
        }
        if (problem_.empty() && !is_over()) {
            problem_ = "no verdict: " + coordinator_.explain() + describe();
        }
        return problem_;
    }

private:
    CoordinatorOptions choose_options() {
        CoordinatorOptions options;
        options.has_leases = !rng_.chance(1, 10);
        options.limits.nodes_max = 6;
        options.limits.failures_kept_max = 3;
        options.limits.timeline_events_max = 6;
        return options;
    }

    [[nodiscard]] bool is_over() const {
        const bool is_anybody_left = std::any_of(agents_.begin(), agents_.end(),
                                                 [](const FuzzAgent& a) { return !a.is_gone; });
        return !is_anybody_left && coordinator_.is_done();
    }

    [[nodiscard]] std::string describe() const {
        const Run* run = coordinator_.run();
        std::string text =
            run == nullptr ? " no run" : fmt::format(" phase {}", run->phase.index());
        for (const FuzzAgent& agent : agents_) {
            text += fmt::format("; {}{}{}", agent.identity.hostname, agent.is_gone ? " gone" : "",
                                agent.connection ? " connected" : "");
            if (agent.held) {
                text += fmt::format(" holds {}", agent.held->generation.value());
            }
            const auto node = run == nullptr ? std::map<NodeId, Node>::const_iterator()
                                             : run->nodes.find(agent.identity.node);
            if (run != nullptr && node != run->nodes.end()) {
                text += fmt::format(" standing {} finished {} failed {}",
                                    static_cast<int>(node->second.standing()),
                                    node->second.finished.size(), node->second.failed.size());
            }
        }
        return text;
    }

    void fail(const std::string& what) {
        if (problem_.empty()) {
            problem_ = what;
        }
    }

    void step(const Input& input) {
        Effects effects;
        coordinator_.step(now_, input, effects);
        std::map<Generation, std::vector<Start>> starts;
        effects.for_each([&](const Effect& effect) {
            if (const Send* send = std::get_if<Send>(&effect)) {
                if (const Start* start = std::get_if<Start>(&send->message)) {
                    starts[start->generation].push_back(*start);
                }
                for (FuzzAgent& agent : agents_) {
                    if (agent.connection == send->connection) {
                        agent.inbox.push_back(send->message);
                    }
                }
            } else if (const auto* close = std::get_if<CloseConnection>(&effect)) {
                for (FuzzAgent& agent : agents_) {
                    if (agent.connection == close->connection) {
                        agent.connection.reset();
                    }
                }
            }
        });
        check_starts(starts);
        check_run();
        if (std::holds_alternative<Tick>(input)) {
            const std::optional<Instant> deadline = coordinator_.next_deadline();
            if (deadline && *deadline <= now_) {
                fail("a deadline in the past after a Tick");
            }
        }
    }

    /// S2 for what is sent at once: equal digests, and ranks that meet without gap or overlap.
    void check_starts(const std::map<Generation, std::vector<Start>>& starts) {
        for (const auto& [generation, rows] : starts) {
            for (std::size_t i = 1; i < rows.size(); ++i) {
                if (rows[i].digest != rows[0].digest || rows[i].world_size != rows[0].world_size ||
                    rows[i].base_rank <= rows[i - 1].base_rank) {
                    fail("rows that disagree");
                }
            }
            for (const Start& row : rows) {
                if (row.base_rank < 0 || row.base_rank >= row.world_size ||
                    row.group_rank >= row.group_world_size) {
                    fail("a rank outside the world");
                }
            }
        }
    }

    void check_run() {
        const Run* run = coordinator_.run();
        if (run == nullptr) {
            return;
        }
        const std::string flaw = run_flaw(*run, options_);
        if (!flaw.empty()) {
            fail(flaw);
        }
        if (run->token == token_ && run->current.number < generation_) {
            fail("a generation went back");
        }
        token_ = run->token;
        generation_ = run->current.number;
    }

    // ----------------------------------------------------------------------------------- agents

    void tell(FuzzAgent& agent, AgentMessage message) {
        if (agent.connection) {
            step(Received{*agent.connection, std::move(message)});
        }
    }

    void join(FuzzAgent& agent, bool is_same_process) {
        if (!is_same_process) {
            agent.token.clear();
            agent.held.reset();
        }
        Join join = agent.identity;
        join.run_token = agent.token;
        join.held = agent.held;
        join.store = {join.hostname, 1};
        agent.inbox.clear();
        agent.is_gone = false;
        agent.connection = ConnectionId(++connections_);
        step(Received{*agent.connection, std::move(join)});
    }

    void leave_for_good(FuzzAgent& agent) {
        tell(agent, Goodbye{});
        if (agent.connection) {
            step(ConnectionEnded{*std::exchange(agent.connection, std::nullopt), true});
        }
        agent.held.reset();
        agent.inbox.clear();
        agent.is_gone = true;
    }

    /// Obeys the next message as a real agent does; workers that start succeed at once if told so.
    void obey(FuzzAgent& agent, bool finishes) {
        if (agent.inbox.empty()) {
            return;
        }
        const RendezvousMessage message = std::move(agent.inbox.front());
        agent.inbox.pop_front();
        if (const Accepted* accepted = std::get_if<Accepted>(&message)) {
            agent.token = accepted->run_token;
        } else if (const Start* start = std::get_if<Start>(&message)) {
            agent.held = HeldGeneration{start->generation, start->digest};
            agent.slots_held = agent.identity.slots;
        } else if (const Stop* stop = std::get_if<Stop>(&message)) {
            agent.held.reset();
            tell(agent, Stopped{stop->generation, {agent.identity.hostname, 2}});
        } else if (std::holds_alternative<Verdict>(message) ||
                   std::holds_alternative<Released>(message) ||
                   std::holds_alternative<Refused>(message)) {
            leave_for_good(agent);
        }
        if (finishes && agent.held) {
            const Generation generation = agent.held->generation;
            for (int i = 0; i < agent.slots_held; ++i) {
                tell(agent, WorkerFinished{generation, LocalRank(i)});
            }
        }
    }

    /// In the name of a node that may be there, or of one that never was.
    Unfit lie_about_fitness(const FuzzAgent& agent) {
        const Join& join = agents_[rng_.below(agents_.size())].identity;
        return {.job = join.job,
                .node = rng_.chance(1, 2) ? join.node : NodeId(fmt::format("x{}", rng_.next())),
                .process = join.process,
                .hostname = join.hostname,
                .run_token = rng_.chance(1, 2) ? agent.token : "nonsense",
                .why = "its fan"};
    }

    HeldGeneration nonsense(Generation generation) {
        constexpr std::array kNumbers = {-1, 0, 1,       2,
                                         3,  6, 100'000, std::numeric_limits<int>::max()};
        const auto number = [&] { return kNumbers[rng_.below(kNumbers.size())]; };
        return {.generation = generation,
                .digest = rng_.chance(1, 2) ? "nonsense" : "",
                .group_rank = number(),
                .group_world_size = number(),
                .base_rank = number(),
                .world_size = number(),
                .restart_count = number(),
                .node_losses = number(),
                .store = {}};
    }

    AgentMessage garbage(FuzzAgent& agent) {
        const Generation generation(rng_.below(6));
        const LocalRank local_rank(static_cast<int>(rng_.below(6)) - 2);
        switch (rng_.below(10)) {
            case 0: {
                Join join = agents_[rng_.below(agents_.size())].identity;
                join.slots = static_cast<int>(rng_.below(5)) - 1;
                join.settings.min_nodes += static_cast<int>(rng_.below(5)) - 2;
                if (rng_.chance(1, 4)) {
                    join.settings.node_sizes.push_back(static_cast<int>(rng_.below(5)) - 1);
                    join.settings.node_unit = static_cast<int>(rng_.below(4)) - 1;
                }
                join.settings.max_restarts += static_cast<int>(rng_.below(3)) - 1;
                join.run_token = rng_.chance(1, 2) ? agent.token : "nonsense";
                if (rng_.chance(1, 2)) {
                    join.held = nonsense(generation);
                }
                return join;
            }
            case 1:
                return WorkerFinished{generation, local_rank};
            case 2: {
                WorkerFailed failed{generation, local_rank, {}};
                failed.evidence.age =
                    Milliseconds(static_cast<std::int64_t>(rng_.below(9000)) - 100);
                failed.evidence.exec_errno = static_cast<int>(rng_.below(4000)) - 2000;
                failed.evidence.signal = static_cast<int>(rng_.below(400)) - 200;
                return failed;
            }
            case 3:
                return Stopped{generation, {}};
            case 4:
                return Leave{static_cast<int>(rng_.below(70)) - 3};
            case 5:
                return Unkillable{generation};
            case 6:
                return generation.value() < 3 ? AgentMessage(Goodbye{})
                                              : AgentMessage(lie_about_fitness(agent));
            case 7:
                return Quiet{generation,
                             Milliseconds(static_cast<std::int64_t>(rng_.below(9000)) - 100)};
            case 8:
                return Reached{
                    .generation = generation,
                    .moments = {{.what = static_cast<Moment>(rng_.below(5)),
                                 .last = local_rank,
                                 .age = Milliseconds(static_cast<std::int64_t>(rng_.below(9000)) -
                                                     100)}},
                    .hang = HangSeen{
                        .rank = Rank(static_cast<int>(rng_.below(9))),
                        .step = rng_.below(3),
                        .looks_every = Milliseconds(static_cast<std::int64_t>(rng_.below(900)))}};
            default:
                return Beat{rng_.next()};
        }
    }

    void work(FuzzAgent& agent) {
        if (!agent.held) {
            return;
        }
        const LocalRank rank(
            static_cast<int>(rng_.below(static_cast<std::uint64_t>(agent.slots_held))));
        if (rng_.chance(2, 3)) {
            tell(agent, WorkerFinished{agent.held->generation, rank});
        } else {
            WorkerFailed failed{agent.held->generation, rank, {}};
            failed.evidence.exit_code = 1;
            tell(agent, failed);
        }
    }

    void disturb() {
        FuzzAgent& agent = agents_[rng_.below(agents_.size())];
        switch (rng_.below(16)) {
            case 0:
            case 1:
                now_ += Milliseconds(rng_.below(300));
                break;
            case 2:
                now_ = std::max(now_, coordinator_.next_deadline().value_or(now_));
                step(Tick{});
                break;
            case 3:
                if (!agent.connection) {
                    join(agent, rng_.chance(3, 4));
                } else if (rng_.chance(1, 8)) {
                    join(agent, rng_.chance(1, 2));
                }
                break;
            case 4:
                if (agent.connection && rng_.chance(1, 4)) {
                    const bool is_dead = rng_.chance(1, 3);
                    step(ConnectionEnded{*std::exchange(agent.connection, std::nullopt), is_dead});
                    if (is_dead) {
                        agent.held.reset();
                        agent.token.clear();
                    }
                }
                break;
            case 5:
                if (options_.has_leases && rng_.chance(1, 4)) {
                    agent.connection.reset();  // only this end knows
                }
                break;
            case 6:
                work(agent);
                break;
            case 7:
                if (rng_.chance(1, 3)) {
                    step(Received{ConnectionId(rng_.below(connections_ + 3)), garbage(agent)});
                }
                break;
            case 8:
                if (rng_.chance(1, 6)) {
                    tell(agent, Leave{15});
                }
                break;
            case 9:
                if (rng_.chance(1, 10)) {
                    step(HeldUp{Milliseconds(rng_.below(2000))});
                }
                break;
            case 10:
                for (FuzzAgent& each : agents_) {
                    tell(each, Beat{1});
                }
                break;
            default:
                obey(agent, false);
                break;
        }
    }

    /// One beat interval in which each agent lives and does what is asked for.
    void behave() {
        now_ += Milliseconds(200);
        for (FuzzAgent& agent : agents_) {
            if (agent.is_gone) {
                continue;
            }
            if (!agent.connection) {
                join(agent, true);
            }
            tell(agent, Beat{1});
            if (agent.inbox.empty() && agent.connection) {
                // Not heard any more, after a lie in its name: a real one would connect anew.
                step(ConnectionEnded{*std::exchange(agent.connection, std::nullopt), false});
                continue;
            }
            while (!agent.inbox.empty() && !agent.is_gone) {
                obey(agent, true);
            }
        }
        if (const std::optional<Instant> deadline = coordinator_.next_deadline();
            deadline && *deadline <= now_) {
            step(Tick{});
        }
    }

    Rng rng_;
    const CoordinatorOptions options_;
    Coordinator coordinator_;
    Instant now_{};
    std::vector<FuzzAgent> agents_;
    std::uint64_t connections_ = 0;
    std::string token_;
    Generation generation_;
    std::string problem_;
};

}  // namespace

TEST_CASE("whatever agents do, the coordinator stays consistent and a verdict comes") {
    for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
        const std::string problem = Fuzz(seed).run(1500);
        if (!problem.empty()) {
            FAIL("seed " << seed << ": " << problem);
        }
    }
}

}  // namespace ddprun::rdzv
