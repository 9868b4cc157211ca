// Goal: nothing that authenticated agents send, in any order and at any time, stops the coordinator
// or makes its state contradict itself. Method: the input moves four agents, which mostly do what
// they are asked, and puts any messages between; all of them go through the codec. After every step
// the state is checked. tests/unit/core_fuzz.cpp asks beyond this that a verdict comes.
#include "rendezvous/core/coordinator.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include "base/check.hpp"
#include "rendezvous/core/run.hpp"
#include "rendezvous/wire/codec.hpp"
#include "rendezvous/wire/control_fields.hpp"
#include "tests/fuzz/choices.hpp"
#include "tests/support/run_flaw.hpp"

namespace ddprun::rdzv {

namespace {

/// Instants hold three hundred years; one run has enough with this.
constexpr std::chrono::hours kTimeMax{24 * 365};

const JobId kJob("job");

/// Starts that are sent at once agree, and their ranks meet without gap or overlap.
void check_starts(const std::vector<Start>& starts) {
    for (const Start& start : starts) {
        DDP_CHECK(start.base_rank >= 0 && start.base_rank < start.world_size, start.base_rank);
        DDP_CHECK(start.group_rank < start.group_world_size, start.group_rank);
        for (const Start& other : starts) {
            const bool is_same = start.group_rank == other.group_rank;
            DDP_CHECK(start.generation != other.generation ||
                          (start.digest == other.digest && start.world_size == other.world_size &&
                           is_same == (start.base_rank == other.base_rank)),
                      start.base_rank, other.base_rank);
        }
    }
}

struct Agent {
    Join identity;
    std::string token;
    std::optional<ConnectionId> connection;
    std::optional<HeldGeneration> held;
    std::deque<RendezvousMessage> inbox;
};

class Play {
public:
    explicit Play(fuzz::Choices& choices)
        : choices_(choices), options_(choose_options()), coordinator_(kJob, options_, Rng(1)) {
        JobSettings settings;
        settings.min_nodes = 1 + static_cast<int>(choices_.below(3));
        settings.max_nodes = settings.min_nodes + static_cast<int>(choices_.below(3));
        settings.max_restarts = static_cast<int>(choices_.below(4));
        settings.max_node_losses = static_cast<int>(choices_.below(4)) - 1;
        settings.grow = choices_.flag();
        for (Milliseconds* const time :
             {&settings.patience, &settings.join_timeout, &settings.grow_delay,
              &settings.failure_grace, &settings.shutdown_timeout}) {
            *time = Milliseconds(choices_.below(8) * 1000);
        }
        for (std::size_t i = 0; i < agents_.size(); ++i) {
            Join& join = agents_[i].identity;
            join.job = kJob;
            join.node = NodeId(fmt::format("n{}", i));
            join.hostname = fmt::format("host{}", i);
            join.slots = 1 + static_cast<int>(choices_.below(3));
            join.store = {join.hostname, 1};
            join.settings = settings;
        }
    }

    void run() {
        while (!choices_.is_empty()) {
            move(agents_[choices_.below(static_cast<unsigned>(agents_.size()))]);
        }
    }

private:
    CoordinatorOptions choose_options() {
        CoordinatorOptions options;
        options.has_leases = choices_.below(4) != 0;
        options.limits.nodes_max = 6;
        options.limits.failures_kept_max = 3;
        options.limits.timeline_events_max = 6;
        return options;
    }

    void step(const Input& input) {
        Effects effects;
        coordinator_.step(now_, input, effects);
        std::vector<Start> starts;
        effects.for_each([&](const Effect& effect) {
            if (const Send* const send = std::get_if<Send>(&effect)) {
                take(*send, starts);
            } else if (const auto* const close = std::get_if<CloseConnection>(&effect)) {
                for (Agent& agent : agents_) {
                    if (agent.connection == close->connection) {
                        agent.connection.reset();
                    }
                }
            }
        });
        check_starts(starts);
        if (const Run* const run = coordinator_.run()) {
            const std::string flaw = run_flaw(*run, options_);
            DDP_CHECK(flaw.empty(), flaw);
            DDP_CHECK(run->token != token_ || run->current.number >= generation_);
            token_ = run->token;
            generation_ = run->current.number;
        }
        const std::optional<Instant> deadline = coordinator_.next_deadline();
        DDP_CHECK(!std::holds_alternative<Tick>(input) || !deadline || *deadline > now_);
    }

    void take(const Send& send, std::vector<Start>& starts) {
        // An agent can read every message that the coordinator sends.
        const Result<RendezvousMessage> message =
            decode_rendezvous_message(encode(send.message), options_.limits);
        DDP_CHECK(message.has_value() && *message == send.message, encode(send.message));
        if (const Start* const start = std::get_if<Start>(&send.message)) {
            starts.push_back(*start);
        }
        for (Agent& agent : agents_) {
            if (agent.connection == send.connection) {
                agent.inbox.push_back(send.message);
            }
        }
    }

    /// The phase, and what each node's workers came to.
    [[nodiscard]] auto standing() const {
        std::map<NodeId, std::pair<std::set<LocalRank>, std::set<LocalRank>>> workers;
        const Run* const run = coordinator_.run();
        if (run != nullptr) {
            for (const auto& [id, node] : run->nodes) {
                workers[id] = {node.finished, node.failed};
            }
        }
        return std::pair(run == nullptr ? 0 : run->phase.index(), workers);
    }

    /// Whether `message` reports workers of another generation than the current one.
    [[nodiscard]] bool is_stale(const AgentMessage& message) const {
        const auto* const finished = std::get_if<WorkerFinished>(&message);
        const auto* const failed = std::get_if<WorkerFailed>(&message);
        const Run* const run = coordinator_.run();
        return run != nullptr &&
               ((finished != nullptr && finished->generation != run->current.number) ||
                (failed != nullptr && failed->generation != run->current.number));
    }

    /// The daemon's part: what does not decode ends the connection, and the job is that of the
    /// handshake.
    void receive(ConnectionId connection, std::string_view body) {
        Result<AgentMessage> message = decode_agent_message(body, options_.limits);
        if (!message) {
            step(ConnectionEnded{connection, false});
            return;
        }
        if (Join* const join = std::get_if<Join>(&*message)) {
            join->job = kJob;
        }
        const bool changes_nothing = is_stale(*message);
        if (changes_nothing) {
            step(Tick{});  // what is due by now is due whichever node sends
        }
        const auto before = standing();
        step(Received{connection, *std::move(message)});
        DDP_CHECK(!changes_nothing || standing() == before, connection.value());
    }

    void tell(const Agent& agent, const AgentMessage& message) {
        if (agent.connection) {
            receive(*agent.connection, encode(message));
        }
    }

    void join(Agent& agent) {
        if (choices_.below(4) == 0) {  // another process
            agent.token.clear();
            agent.held.reset();
        }
        Join join = agent.identity;
        join.run_token = agent.token;
        join.held = agent.held;
        agent.inbox.clear();
        agent.connection = ConnectionId(++connections_);
        tell(agent, join);
    }

    void obey(Agent& agent) {
        if (agent.inbox.empty()) {
            return;
        }
        const RendezvousMessage message = std::move(agent.inbox.front());
        agent.inbox.pop_front();
        if (const Accepted* accepted = std::get_if<Accepted>(&message)) {
            agent.token = accepted->run_token;
        } else if (const Start* start = std::get_if<Start>(&message)) {
            agent.held = HeldGeneration{start->generation, start->digest};
        } else if (const Stop* stop = std::get_if<Stop>(&message)) {
            agent.held.reset();
            tell(agent, Stopped{stop->generation, {agent.identity.hostname, 2}});
        } else if (std::holds_alternative<Verdict>(message) ||
                   std::holds_alternative<Released>(message)) {
            tell(agent, Goodbye{});
        }
    }

    HeldGeneration choose_held(Generation generation) {
        constexpr std::array kNumbers = {0, 1, 2, 3, 6, 100'000, std::numeric_limits<int>::max()};
        const auto number = [&] { return kNumbers[choices_.below(kNumbers.size())]; };
        return {.generation = generation,
                .digest = choices_.flag() ? "" : "nonsense",
                .group_rank = number(),
                .group_world_size = number(),
                .base_rank = number(),
                .world_size = number(),
                .restart_count = number(),
                .node_losses = number(),
                .store = {}};
    }

    AgentMessage choose_message() {
        const Generation generation(choices_.below(6));
        const LocalRank local_rank(static_cast<int>(choices_.below(6)));
        switch (choices_.below(10)) {
            case 0: {
                Join join = agents_[choices_.below(static_cast<unsigned>(agents_.size()))].identity;
                join.slots = static_cast<int>(choices_.below(5));
                join.settings.min_nodes = static_cast<int>(choices_.below(8));
                join.settings.max_nodes = static_cast<int>(choices_.below(8));
                join.node_rank = static_cast<int>(choices_.below(8));
                join.run_token = choices_.flag() ? token_ : std::string();
                join.held = choose_held(generation);
                return join;
            }
            case 1:
                return WorkerFinished{generation, local_rank};
            case 2: {
                WorkerFailed failed{generation, local_rank, {}};
                failed.evidence.age = Milliseconds(choices_.word());
                failed.evidence.exec_errno = static_cast<int>(1 + choices_.below(200));
                failed.evidence.signal = static_cast<int>(1 + choices_.below(127));
                failed.evidence.stderr_tail = std::string(choices_.bytes(choices_.below(16)));
                return failed;
            }
            case 3:
                return Stopped{generation, {}};
            case 4:
                return Leave{static_cast<int>(choices_.below(128))};
            case 5:
                return Unkillable{generation};
            case 6:
                return Goodbye{choices_.flag() ? "its fan" : ""};
            case 7:
                return Quiet{generation, Milliseconds(choices_.word())};
            case 9:
                return Reached{.generation = generation,
                               .moments = {{.what = static_cast<Moment>(choices_.below(5)),
                                            .last = local_rank,
                                            .age = Milliseconds(choices_.word())}},
                               .hang = HangSeen{.rank = Rank(static_cast<int>(choices_.below(16))),
                                                .step = choices_.below(16),
                                                .looks_every = Milliseconds(choices_.word())}};
            case 8: {
                const Join& join =
                    agents_[choices_.below(static_cast<unsigned>(agents_.size()))].identity;
                return Unfit{.job = kJob,
                             .node = choices_.flag() ? join.node : NodeId("stranger"),
                             .process = join.process,
                             .hostname = join.hostname,
                             .run_token = choices_.flag() ? token_ : std::string(),
                             .why = "its fan"};
            }
            default:
                return Beat{generation.value()};
        }
    }

    void work(const Agent& agent) {
        if (!agent.held) {
            return;
        }
        const LocalRank rank(static_cast<int>(choices_.below(3)));
        if (choices_.below(4) != 0) {
            tell(agent, WorkerFinished{agent.held->generation, rank});
        } else {
            WorkerFailed failed{agent.held->generation, rank, {}};
            failed.evidence.exit_code = 1;
            tell(agent, failed);
        }
    }

    void lose_connection(Agent& agent) {
        if (!agent.connection) {
            return;
        }
        const ConnectionId connection = *std::exchange(agent.connection, std::nullopt);
        const unsigned how = choices_.below(3);
        if (how < 2) {  // else only this end knows
            step(ConnectionEnded{connection, how == 0});
        }
    }

    void pass_time() {
        const std::optional<Instant> deadline = coordinator_.next_deadline();
        if (choices_.flag()) {
            now_ += Milliseconds(choices_.below(256) * 4);
        } else if (deadline && *deadline < Instant{} + kTimeMax) {
            now_ = std::max(now_, *deadline);
            step(Tick{});
        }
    }

    void move(Agent& agent) {
        switch (choices_.below(16)) {
            case 0:
            case 1:
                pass_time();
                break;
            case 2:
                join(agent);
                break;
            case 3:
                lose_connection(agent);
                break;
            case 4:
            case 5:
                work(agent);
                break;
            case 6: {
                const ConnectionId connection(choices_.below(16));
                receive(connection, encode(choose_message()));
                break;
            }
            case 7: {
                const ConnectionId connection(choices_.below(16));
                receive(connection, choices_.bytes(choices_.byte()));
                break;
            }
            case 8:
                tell(agent, Leave{15});
                break;
            case 9:
                step(HeldUp{Milliseconds(choices_.word())});
                break;
            case 10:
                for (const Agent& each : agents_) {
                    tell(each, Beat{1});
                }
                break;
            case 11:
                step(OrderGiven{.number = 1, .order = choose_order(), .from = "fuzz"});
                break;
            case 12:
                step(StrangerRefused{.address = fmt::format("10.0.0.{}", choices_.byte()),
                                     .why = "its secret is not ours"});
                break;
            default:
                obey(agent);
                break;
        }
    }

    OperatorOrder choose_order() {
        return {.job = kJob,
                .action = kOperatorActionNames[choices_.below(kOperatorActionNames.size())].second,
                .node = choices_.flag() ? "" : fmt::format("n{}", choices_.below(5)),
                .duration = Milliseconds(choices_.word()),
                .nodes = static_cast<int>(choices_.below(8)),
                .by = "operator"};
    }

    fuzz::Choices& choices_;
    const CoordinatorOptions options_;
    Coordinator coordinator_;
    Instant now_{};
    std::array<Agent, 4> agents_;
    std::uint64_t connections_ = 0;
    std::string token_;
    Generation generation_;
};

}  // namespace

}  // namespace ddprun::rdzv

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    ddprun::fuzz::Choices choices(data, size);
    ddprun::rdzv::Play(choices).run();
    return 0;
}
