// Nodes prepare before the first workers: each node for itself, or one node for the job.

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/core/coordinator.hpp"
#include "rendezvous/core/run.hpp"
#include "rendezvous/wire/codec.hpp"
#include "tests/support/catch.hpp"

namespace ddprun::rdzv {

namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

Join preparing(const std::string& name, Prepares prepares, const std::string& process = "1") {
    Join join;
    join.job = JobId("job");
    join.node = NodeId(name);
    join.process = process;
    join.hostname = name;
    join.store = {name, 1};
    join.settings.min_nodes = 2;
    join.settings.max_nodes = 3;
    join.prepares = prepares;
    return join;
}

/// One coordinator; nodes a, b, c have the connections 1, 2, 3, and beat.
class Nodes3 {
public:
    Nodes3() : coordinator(JobId("job"), CoordinatorOptions{}, Rng(1)) {}
    /// Those of another rendezvous, which has read `record`.
    explicit Nodes3(const RunRecord& record) : Nodes3() {
        REQUIRE(coordinator.restore(now, record).has_value());
    }

    void hear(std::uint64_t connection, const AgentMessage& message) {
        step(Received{ConnectionId(connection), message});
    }
    void step(const Input& input) {
        effects = {};
        coordinator.step(now, input, effects);
    }
    void join(std::uint64_t connection, Prepares prepares) {
        hear(connection, preparing(name_of(connection), prepares));
        here.push_back(connection);
    }
    void done(std::uint64_t connection) {
        hear(connection, Stopped{Generation(), {name_of(connection), 7}});
    }
    void lose(std::uint64_t connection) {
        std::erase(here, connection);
        step(ConnectionEnded{ConnectionId(connection), true});
    }
    /// A long time with a beat of each node at its end, so that all nodes count as alive.
    void pass(Duration time) {
        now += time;
        for (const std::uint64_t connection : here) {
            effects = {};
            coordinator.step(now, Received{ConnectionId(connection), Beat{1}}, effects);
        }
        step(Tick{});
    }

    template <typename T>
    [[nodiscard]] std::vector<T> sent(std::uint64_t connection) const {
        std::vector<T> found;
        effects.for_each([&](const Effect& effect) {
            const Send* send = std::get_if<Send>(&effect);
            if (send != nullptr && send->connection == ConnectionId(connection)) {
                if (const T* message = std::get_if<T>(&send->message)) {
                    found.push_back(*message);
                }
            }
        });
        return found;
    }
    [[nodiscard]] bool runs() const {
        return std::holds_alternative<Running>(coordinator.run()->phase);
    }
    [[nodiscard]] const Closed* closed() const {
        return std::get_if<Closed>(&coordinator.run()->phase);
    }

    Coordinator coordinator;
    Effects effects;
    Instant now{};
    std::vector<std::uint64_t> here;

private:
    static std::string name_of(std::uint64_t connection) {
        return std::string(1, static_cast<char>('a' + connection - 1));
    }
};

}  // namespace

TEST_CASE("no time-out passes while a node prepares") {
    Nodes3 nodes;
    const int ready_nodes = GENERATE(0, 1, 2);
    nodes.join(1, Prepares::Node);
    CHECK(nodes.sent<Prepare>(1).size() == 1);
    for (int i = 0; i < ready_nodes; ++i) {
        nodes.join(static_cast<std::uint64_t>(2 + i), Prepares::Nobody);
        CHECK(nodes.sent<Prepare>(static_cast<std::uint64_t>(2 + i)).empty());
    }
    // The last call takes 30 s, joining 10 minutes.
    for (int i = 0; i < 100; ++i) {
        nodes.pass(milliseconds(500));
    }
    nodes.now += hours(5);
    nodes.hear(1, Beat{2});
    CHECK_FALSE(nodes.runs());
    REQUIRE(nodes.closed() == nullptr);
    CHECK(nodes.coordinator.explain() == "waiting for the prepare command on a: " +
                                             std::string(ready_nodes == 0   ? "0 nodes"
                                                         : ready_nodes == 1 ? "1 node"
                                                                            : "2 nodes") +
                                             " of 2:3 ready");
    nodes.done(1);
    CHECK(nodes.runs() == (ready_nodes == 2));
    if (ready_nodes == 1) {
        // From now on the last call counts.
        nodes.pass(milliseconds(500));
        CHECK_FALSE(nodes.runs());
    }
}

TEST_CASE("a node that could not prepare ends a job that has not begun, and no other") {
    Nodes3 nodes;
    nodes.join(1, Prepares::Nobody);
    nodes.join(2, Prepares::Node);
    const Goodbye failed{.unprepared = "exited with code 9", .exit_code = 9};
    SECTION("not begun") {
        nodes.hear(2, failed);
        REQUIRE(nodes.closed() != nullptr);
        REQUIRE(nodes.sent<Verdict>(1).size() == 1);
        CHECK(nodes.sent<Verdict>(1)[0].exit_code == 9);
        CHECK(nodes.sent<Verdict>(1)[0].kind == VerdictKind::Failed);
        CHECK(nodes.sent<Verdict>(1)[0].text == "the prepare command on b exited with code 9");
    }
    SECTION("begun") {
        nodes.done(2);
        nodes.join(3, Prepares::Node);
        nodes.hear(3, Beat{1});
        // With the maximum the generation would have begun; the last call is over first.
        nodes.hear(3, failed);
        CHECK(nodes.closed() != nullptr);
    }
    SECTION("running") {
        nodes.join(3, Prepares::Nobody);
        nodes.done(2);
        REQUIRE(nodes.runs());
        nodes.hear(4, preparing("d", Prepares::Node));
        CHECK(nodes.sent<Prepare>(4).size() == 1);
        nodes.hear(4, failed);
        CHECK(nodes.runs());
    }
}

TEST_CASE("a node that prepares and is told to leave is released at once") {
    Nodes3 nodes;
    nodes.join(1, Prepares::Node);
    nodes.join(2, Prepares::Node);
    nodes.hear(2, Leave{15});
    CHECK(nodes.sent<Released>(2).size() == 1);
    CHECK(nodes.coordinator.run()->nodes.size() == 1);
}

TEST_CASE("one node prepares for the job, and another one once it is lost") {
    Nodes3 nodes;
    nodes.join(1, Prepares::Job);
    CHECK(nodes.sent<Prepare>(1).size() == 1);
    nodes.join(2, Prepares::Job);
    nodes.join(3, Prepares::Job);
    CHECK(nodes.sent<Prepare>(3).empty());
    CHECK_FALSE(nodes.runs());
    // A node that was not asked cannot have prepared.
    nodes.done(2);
    CHECK_FALSE(nodes.runs());
    nodes.lose(1);
    CHECK(nodes.sent<Prepare>(2).size() == 1);
    CHECK(nodes.sent<Prepare>(3).empty());
    nodes.hear(1, preparing("a", Prepares::Job, "2"));
    CHECK(nodes.sent<Prepare>(1).empty());
    nodes.done(2);
    CHECK(nodes.runs());
    // One that comes later has nothing left to do.
    nodes.hear(4, preparing("d", Prepares::Job));
    CHECK(nodes.sent<Prepare>(4).empty());
    CHECK(nodes.coordinator.run()->nodes.at(NodeId("d")).standing() == Standing::Ready);
}

TEST_CASE("the node that prepares for the job stays the one while its lease lasts") {
    Nodes3 nodes;
    nodes.join(1, Prepares::Job);
    nodes.join(2, Prepares::Job);
    nodes.step(ConnectionEnded{ConnectionId(1), false});
    CHECK(nodes.sent<Prepare>(2).empty());
    Join again = preparing("a", Prepares::Job);
    again.run_token = nodes.coordinator.run()->token;
    nodes.hear(5, again);
    CHECK(nodes.sent<Prepare>(5).size() == 1);
    CHECK(nodes.sent<Prepare>(2).empty());
    SECTION("its answer comes") {
        nodes.hear(5, Stopped{Generation(), {"a", 7}});
    }
    SECTION("it was done while it was cut off again") {
        nodes.step(ConnectionEnded{ConnectionId(5), false});
        again.prepares = Prepares::Nobody;
        nodes.hear(6, again);
        CHECK(nodes.sent<Prepare>(2).empty());
    }
    SECTION("it has begun, which the next rendezvous has to be told, too") {
        nodes.step(ConnectionEnded{ConnectionId(5), false});
        again.prepares = Prepares::JobHere;
        nodes.hear(6, again);
        CHECK(nodes.sent<Prepare>(2).empty());
        nodes.hear(6, Stopped{Generation(), {"a", 7}});
    }
    SECTION("another ddprun has taken its place, and does not know of it") {
        Join other = preparing("a", Prepares::Nobody, "2");
        nodes.hear(6, other);
        CHECK(nodes.sent<Prepare>(2).size() == 1);
        nodes.done(2);
    }
    CHECK(nodes.coordinator.run()->nodes.ready().size() == 2);
}

TEST_CASE("a node that has begun for the job under a rendezvous that is gone goes on, and ends") {
    Nodes3 nodes;
    const bool comes_first = GENERATE(true, false);
    if (comes_first) {
        nodes.join(1, Prepares::JobHere);
        nodes.join(2, Prepares::Job);
        CHECK(nodes.sent<Prepare>(2).empty());
        nodes.done(1);
        CHECK(nodes.coordinator.run()->nodes.ready().size() == 2);
        return;
    }
    nodes.join(2, Prepares::Job);
    nodes.join(1, Prepares::JobHere);
    CHECK(nodes.sent<Prepare>(1).empty());
    nodes.join(3, Prepares::Job);
    nodes.done(2);
    // It cannot have workers while its own command runs.
    CHECK(nodes.coordinator.run()->nodes.ready().size() == 2);
    CHECK_FALSE(nodes.runs());
    nodes.done(1);
    CHECK(nodes.runs());
}

TEST_CASE("what was done for the job before its first workers is in the journal") {
    Nodes3 nodes;
    nodes.join(1, Prepares::Job);
    nodes.join(2, Prepares::Job);
    CHECK_FALSE(nodes.coordinator.record(nodes.now).has_value());
    nodes.done(1);
    CHECK(nodes.effects.record == RecordWrite::Behind);
    CHECK_FALSE(nodes.runs());
    const std::optional<RunRecord> record = nodes.coordinator.record(nodes.now);
    REQUIRE(record.has_value());
    std::string text = encode(*record);
    const std::string field = ",\"is_prepared\":true";
    const bool is_old = GENERATE(false, true);
    if (is_old) {
        text.erase(text.find(field), field.size());
    }
    const Result<RunRecord> read = decode<RunRecord>(text, Limits());
    REQUIRE(read.has_value());
    Nodes3 later(*read);
    Join again = preparing("b", Prepares::Job);
    again.run_token = record->token;
    later.hear(2, again);
    CHECK(later.sent<Prepare>(2).size() == (is_old ? 1 : 0));
    // The one that did it was lost with the rendezvous, and another ddprun takes its place.
    later.hear(1, preparing("a", Prepares::Job, "2"));
    CHECK(later.sent<Prepare>(1).empty());
    later.hear(3, preparing("c", Prepares::Job));
    CHECK(later.sent<Prepare>(3).empty());
    CHECK(later.runs() == !is_old);
}

}  // namespace ddprun::rdzv
