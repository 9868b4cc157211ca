// The phase × input table of rendezvous/core/README.md. Every alternative of every variant has a
// row: a new input without a sample does not compile, one without a decision here does not pass.
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "rendezvous/core/coordinator.hpp"
#include "rendezvous/core/run.hpp"
#include "tests/support/catch.hpp"

namespace ddprun::rdzv {

namespace {

const ConnectionId kA{1};
const ConnectionId kB{2};
const ConnectionId kC{3};

Join join_of(const std::string& name) {
    Join join;
    join.job = JobId("job");
    join.node = NodeId(name);
    join.hostname = name;
    join.slots = 2;
    join.settings.min_nodes = 2;
    join.settings.max_nodes = 2;
    join.settings.max_restarts = 0;
    return join;
}

/// A message as a member would send it; a stranger's for Join and Unfit.
template <typename T>
T sample() {
    static_assert(!std::is_same_v<T, T>, "a message without a row in the table");
    return {};
}
template <>
Join sample<Join>() {
    return join_of("c");
}
template <>
WorkerFinished sample<WorkerFinished>() {
    return {Generation(1), LocalRank(0)};
}
template <>
WorkerFailed sample<WorkerFailed>() {
    WorkerFailed failed{Generation(1), LocalRank(0), {}};
    failed.evidence.exit_code = 1;
    return failed;
}
template <>
Stopped sample<Stopped>() {
    return {Generation(1), {"b", 2}};
}
template <>
Leave sample<Leave>() {
    return {15};
}
template <>
Quiet sample<Quiet>() {
    return {Generation(1), Milliseconds(60000)};
}
template <>
Reached sample<Reached>() {
    return {.generation = Generation(1),
            .moments = {{.what = Moment::Main, .last = LocalRank(1)}},
            .hang = HangSeen{.rank = Rank(1),
                             .step = 7,
                             .host = "gpu-01",
                             .collective = "AllReduce",
                             .text = "stands still",
                             .looks_every = Milliseconds(150000)}};
}
template <>
Progress sample<Progress>() {
    return {Generation(1), {{.local_rank = LocalRank(0)}}};
}
template <>
WorkersRead sample<WorkersRead>() {
    return {.reader = 1, .bytes = "[0] hello\n"};
}
template <>
Unkillable sample<Unkillable>() {
    return {Generation(1)};
}
template <>
Goodbye sample<Goodbye>() {
    return {"its fan"};
}
template <>
Unfit sample<Unfit>() {
    return {.job = JobId("job"), .node = NodeId("c"), .hostname = "c", .why = "its fan"};
}
template <>
Beat sample<Beat>() {
    return {5};
}

template <std::size_t... Is>
std::vector<AgentMessage> all_messages(std::index_sequence<Is...>) {
    return {AgentMessage(sample<std::variant_alternative_t<Is, AgentMessage>>())...};
}

std::vector<AgentMessage> all_messages() {
    return all_messages(std::make_index_sequence<std::variant_size_v<AgentMessage>>());
}

constexpr std::array<const char*, 13> kMessageNames = {
    "Join",    "WorkerFinished", "WorkerFailed", "Quiet",   "Reached", "Progress", "WorkersRead",
    "Stopped", "Leave",          "Unkillable",   "Goodbye", "Unfit",   "Beat"};
static_assert(std::variant_size_v<AgentMessage> == kMessageNames.size());
constexpr std::array<const char*, 15> kAnswerNames = {
    "Accepted", "Refused", "Waiting", "Notice", "Watch",    "Happened", "ReadWorkers", "ReadOn",
    "Redirect", "Prepare", "Start",   "Stop",   "Released", "Verdict",  "Acknowledge"};
static_assert(std::variant_size_v<RendezvousMessage> == kAnswerNames.size());
constexpr std::array<const char*, 6> kPhaseNames = {"Forming", "Running",  "Stopping",
                                                    "Closed",  "Adopting", "Restored"};
static_assert(std::variant_size_v<Phase> == kPhaseNames.size());
static_assert(std::variant_size_v<Input> == 7,
              "Received, ConnectionEnded, HeldUp, Tick, Durability, OrderGiven, StrangerRefused");

OrderGiven given(OperatorAction action, const std::string& node = {}) {
    return {.number = 1,
            .order = {.job = JobId("job"),
                      .action = action,
                      .node = node,
                      .duration = Milliseconds(1000),
                      .nodes = 2,
                      .by = "alice@head"},
            .from = "10.0.0.9"};
}

/// A coordinator that is brought into one phase. The speaker is b, or a if only a has joined.
class Table {
public:
    explicit Table(const std::string& phase)
        : coordinator_(std::make_unique<Coordinator>(JobId("job"), options(), Rng(1))),
          speaker_(phase == "Forming" || phase == "Adopting" ? kA : kB) {
        Join first = join_of("a");
        if (phase == "Adopting") {
            first.run_token = "earlier";
            first.held = HeldGeneration{.generation = Generation(5),
                                        .digest = "five",
                                        .group_world_size = 2,
                                        .world_size = 2};
        }
        step(Received{kA, first});
        if (phase != "Forming" && phase != "Adopting") {
            step(Received{kB, join_of("b")});
        }
        if (phase == "Stopping" || phase == "Closed") {
            step(Received{kA, sample<WorkerFailed>()});
        }
        if (phase == "Closed") {
            step(Received{kA, sample<Stopped>()});
            step(Received{kB, sample<Stopped>()});
        }
        if (phase == "Restored") {
            const std::optional<RunRecord> record = coordinator_->record(now_);
            coordinator_ = std::make_unique<Coordinator>(JobId("job"), options(), Rng(2));
            REQUIRE(coordinator_->restore(now_, record.value()).has_value());
        }
        REQUIRE(phase_name() == phase);
    }

    /// Each change is explained in its own step.
    static CoordinatorOptions options() {
        CoordinatorOptions options;
        options.limits.explain_gather = Milliseconds(0);
        return options;
    }

    /// "a<-Stop b<-Stop =Stopping": what the input did.
    std::string step(const Input& input) {
        const std::string before = coordinator_->run() == nullptr ? "none" : phase_name();
        Effects effects;
        coordinator_->step(now_, input, effects);
        std::string text;
        effects.for_each([&](const Effect& effect) {
            if (const Send* send = std::get_if<Send>(&effect)) {
                text +=
                    name_of(send->connection) + "<-" + kAnswerNames[send->message.index()] + " ";
            } else if (const auto* close = std::get_if<CloseConnection>(&effect)) {
                text += name_of(close->connection) + " closed ";
            } else if (const auto* ordered = std::get_if<Ordered>(&effect)) {
                text += ordered->reply.fault == OrderFault::None ? "taken " : "refused ";
            }
        });
        text += phase_name() == before ? "" : "=" + phase_name() + " ";
        return text.empty() ? "-" : text.substr(0, text.size() - 1);
    }

    std::string late_tick() {
        now_ += std::chrono::seconds(1);
        return step(Tick{});
    }

    [[nodiscard]] ConnectionId speaker() const { return speaker_; }

private:
    static std::string name_of(ConnectionId connection) {
        return std::string(1, static_cast<char>('a' + connection.value() - 1));
    }
    [[nodiscard]] std::string phase_name() const {
        return kPhaseNames[coordinator_->run()->phase.index()];
    }

    std::unique_ptr<Coordinator> coordinator_;
    ConnectionId speaker_;
    Instant now_{};
};

using Row = std::array<std::string, kPhaseNames.size()>;

// Columns: Forming, Running, Stopping, Closed, Adopting, Restored.
const std::map<std::string, Row> kTable = {
    {"Join",
     {"c<-Accepted a<-Start c<-Start =Running", "c<-Accepted c<-Waiting",
      "c<-Accepted a<-Waiting b<-Waiting c<-Waiting", "c<-Accepted c<-Verdict", "-", "-"}},
    {"WorkerFinished", {"-", "-", "-", "-", "-", "-"}},
    {"WorkerFailed", {"-", "a<-Stop b<-Stop =Stopping", "-", "-", "-", "-"}},
    {"Quiet", {"-", "-", "-", "-", "-", "-"}},
    {"Reached", {"-", "-", "-", "-", "-", "-"}},
    {"Progress", {"-", "-", "-", "-", "-", "-"}},
    {"WorkersRead", {"-", "-", "-", "-", "-", "-"}},
    {"Stopped", {"-", "a<-Stop b<-Stop =Stopping", "-", "-", "-", "-"}},
    {"Leave", {"a<-Released =Closed", "a<-Stop b<-Stop =Stopping", "-", "-", "-", "-"}},
    {"Unkillable", {"-", "a<-Stop =Stopping", "-", "-", "-", "-"}},
    {"Goodbye", {"=Closed", "a<-Stop =Stopping", "-", "-", "-", "-"}},
    {"Unfit",
     {"c<-Refused c closed", "c<-Refused c closed a<-Notice", "c<-Refused c closed a<-Notice",
      "c<-Refused c closed", "c<-Refused c closed", "c<-Refused c closed"}},
    {"Beat", {"a<-Acknowledge", "b<-Acknowledge", "b<-Acknowledge", "b<-Acknowledge", "-", "-"}},
    {"ConnectionEnded, end of stream", {"-", "a<-Stop =Stopping", "-", "-", "-", "-"}},
    {"ConnectionEnded, reset", {"-", "-", "-", "-", "-", "-"}},
    {"HeldUp", {"-", "-", "-", "-", "-", "-"}},
    {"Tick, nothing due", {"-", "-", "-", "-", "-", "-"}},
    {"Tick, leases over",
     {"a closed", "-", "a<-Waiting b<-Waiting", "a closed b closed", "-", "-"}},
    {"Durability",
     {"a<-Notice", "a<-Notice b<-Notice", "a<-Notice b<-Notice", "a<-Notice b<-Notice", "-", "-"}},
    {"StrangerRefused", {"a<-Waiting", "a<-Notice", "a<-Notice", "-", "-", "-"}},
    {"Order drain",
     {"a<-Released taken =Closed", "a<-Stop b<-Stop taken =Stopping", "taken", "refused", "refused",
      "refused"}},
    {"Order restart",
     {"refused", "a<-Stop b<-Stop taken =Stopping", "taken", "refused", "refused", "refused"}},
    {"Order hold",
     {"taken a<-Waiting", "taken", "taken a<-Waiting b<-Waiting", "refused", "refused", "refused"}},
    {"Order stop",
     {"a<-Verdict taken =Closed", "a<-Stop b<-Stop taken =Stopping", "taken", "refused", "refused",
      "refused"}},
    {"Order grow",
     {"taken a<-Waiting", "taken", "taken a<-Waiting b<-Waiting", "refused", "refused", "refused"}},
    {"Order shrink",
     {"taken a<-Waiting", "taken", "taken a<-Waiting b<-Waiting", "refused", "refused", "refused"}},
    {"Order quarantine",
     {"taken a<-Waiting", "taken", "taken a<-Waiting b<-Waiting", "refused", "refused", "refused"}},
    {"Order release", {"refused", "refused", "refused", "refused", "refused", "refused"}},
};

std::vector<std::pair<std::string, Input>> all_inputs(ConnectionId speaker) {
    std::vector<std::pair<std::string, Input>> inputs;
    for (const AgentMessage& message : all_messages()) {
        const bool is_strangers =
            std::holds_alternative<Join>(message) || std::holds_alternative<Unfit>(message);
        inputs.emplace_back(kMessageNames[message.index()],
                            Received{is_strangers ? kC : speaker, message});
    }
    inputs.emplace_back("ConnectionEnded, end of stream", ConnectionEnded{speaker, true});
    inputs.emplace_back("ConnectionEnded, reset", ConnectionEnded{speaker, false});
    inputs.emplace_back("HeldUp", HeldUp{Milliseconds(10)});
    inputs.emplace_back("Tick, nothing due", Tick{});
    inputs.emplace_back("Durability", Durability{"the disk is full"});
    inputs.emplace_back("StrangerRefused", StrangerRefused{"10.0.0.7", "its secret is not ours"});
    inputs.emplace_back("Order drain", given(OperatorAction::Drain, "a"));
    inputs.emplace_back("Order restart", given(OperatorAction::Restart));
    inputs.emplace_back("Order hold", given(OperatorAction::Hold));
    inputs.emplace_back("Order stop", given(OperatorAction::Stop));
    inputs.emplace_back("Order grow", given(OperatorAction::Grow));
    inputs.emplace_back("Order shrink", given(OperatorAction::Shrink));
    inputs.emplace_back("Order quarantine", given(OperatorAction::Quarantine, "a"));
    inputs.emplace_back("Order release", given(OperatorAction::Release));
    return inputs;
}

}  // namespace

TEST_CASE("every phase and input has the effect that the table says") {
    for (std::size_t phase = 0; phase < kPhaseNames.size(); ++phase) {
        for (const auto& [name, input] : all_inputs(Table(kPhaseNames[phase]).speaker())) {
            Table table(kPhaseNames[phase]);
            INFO(kPhaseNames[phase] << " x " << name);
            REQUIRE(kTable.contains(name));
            CHECK(table.step(input) == kTable.at(name)[phase]);
        }
        Table table(kPhaseNames[phase]);
        INFO(kPhaseNames[phase] << " x Tick, leases over");
        CHECK(table.late_tick() == kTable.at("Tick, leases over")[phase]);
    }
}

TEST_CASE("the last answer to a stop ends it") {
    Table table("Stopping");
    CHECK(table.step(Received{kA, sample<Stopped>()}) == "-");
    CHECK(table.step(Received{kB, sample<Stopped>()}) == "a<-Verdict b<-Verdict =Closed");
}

TEST_CASE("whoever has not joined is not heard, in any phase") {
    for (const char* phase : kPhaseNames) {
        for (const auto& [name, input] : all_inputs(ConnectionId(99))) {
            if (name == "Join" || name == "Unfit" || name == "Durability" ||
                name == "StrangerRefused" || std::holds_alternative<OrderGiven>(input)) {
                continue;  // how to join, what is said instead, and no node's word
            }
            Table table(phase);
            INFO(phase << " x " << name);
            CHECK(table.step(input) == "-");
        }
    }
}

TEST_CASE("before the first join nothing has an effect and nothing is awaited") {
    for (const auto& [name, input] : all_inputs(kA)) {
        if (name == "Join" || name == "Unfit" || std::holds_alternative<OrderGiven>(input)) {
            continue;
        }
        Coordinator coordinator(JobId("job"), {}, Rng(1));
        Effects effects;
        coordinator.step(Instant{}, input, effects);
        INFO(name);
        CHECK(effects.is_empty());
        CHECK(coordinator.run() == nullptr);
        CHECK_FALSE(coordinator.next_deadline());
        CHECK(coordinator.explain().empty());
        CHECK_FALSE(coordinator.is_done());
        CHECK_FALSE(coordinator.is_forgettable(Instant{}));
    }
}

}  // namespace ddprun::rdzv
