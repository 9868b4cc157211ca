// Goal: a daemon's decisions around its jobs are right: whose a connection is, which job makes room
// for another, how many orders wait, whose store is on the port, when it sends agents to a leader,
// what it reads before it judges, and when it is idle. Method: a DaemonHost with made-up
// connections; the test is its clock and takes its effects.

#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "rendezvous/core/run.hpp"
#include "rendezvous/host/daemon_host.hpp"
#include "rendezvous/wire/codec.hpp"
#include "tests/support/catch.hpp"
#include "tests/unit/host_inputs.hpp"

namespace ddprun::rdzv {
namespace {

using test::at;

Join join_of(const std::string& job, const std::string& node = "n0") {
    return test::join_of(JobId(job), node, "p");
}

Unfit unfit_of(const std::string& job) {
    return Unfit{.job = JobId(job),
                 .node = NodeId("n9"),
                 .process = "q",
                 .hostname = "n9",
                 .why = "its fan"};
}

struct Fixture {
    explicit Fixture(DaemonHostOptions with = {}) : host(options(std::move(with)), Rng(1)) {
        if (!host.leader()) {
            host.begin(at(0), Keeping::IfPossible, {}, effects);
        }
    }

    static DaemonHostOptions options(DaemonHostOptions with) {
        with.coordinator.limits.jobs_max = 2;
        with.coordinator.limits.orders_max = 2;
        return with;
    }

    void receive(std::uint64_t connection, const AgentMessage& message, int ms = 0) {
        effects.clear();
        host.receives(at(ms), ConnectionId(connection), message, effects);
    }
    void end(std::uint64_t connection, PeerEnd how, int ms = 0) {
        effects.clear();
        host.ended(at(ms), ConnectionId(connection), how, effects);
    }
    void order(std::uint64_t number, const std::string& job) {
        effects.clear();
        host.order(at(0), number,
                   {.job = JobId(job), .action = OperatorAction::Restart, .by = "me"}, "here",
                   effects);
    }

    /// Those of the last input.
    template <typename T>
    [[nodiscard]] std::vector<T> all() const {
        std::vector<T> found;
        for (const DaemonEffect& effect : effects) {
            if (const T* const it = std::get_if<T>(&effect)) {
                found.push_back(*it);
            }
        }
        return found;
    }
    /// The only message of that kind.
    template <typename T>
    [[nodiscard]] std::optional<T> sent() const {
        std::optional<T> found;
        for (const Send& send : all<Send>()) {
            if (const T* const it = std::get_if<T>(&send.message)) {
                CHECK_FALSE(found);
                found = *it;
            }
        }
        return found;
    }

    DaemonEffects effects;
    DaemonHost host;
};

TEST_CASE("a connection speaks for its job after it has joined, and until it is closed or ends") {
    Fixture test;
    test.receive(1, Beat{1});
    REQUIRE(test.all<ResetConnection>().size() == 1);
    CHECK(test.all<ResetConnection>()[0].connection == ConnectionId(1));
    CHECK_FALSE(test.host.has_joined(ConnectionId(1)));
    test.receive(2, join_of("llama"));
    CHECK(test.host.has_joined(ConnectionId(2)));
    CHECK(*test.host.job_of(ConnectionId(2)) == JobId("llama"));
    CHECK(test.host.connections(JobId("llama")) == std::vector{ConnectionId(2)});
    test.receive(2, Beat{1});
    CHECK(test.sent<Acknowledge>());
    test.end(2, PeerEnd::ProcessGone);
    CHECK(test.host.job_of(ConnectionId(2)) == nullptr);
}

TEST_CASE("a job beyond the most is refused, and one without a run makes room for it") {
    Fixture test;
    test.receive(1, join_of("a"));
    test.receive(2, unfit_of("b"));
    CHECK(test.host.size() == 2);
    test.receive(3, join_of("c"));
    CHECK(test.host.host(JobId("b")) == nullptr);
    CHECK(test.host.run(JobId("c")) != nullptr);
    test.receive(4, join_of("d"));
    REQUIRE(test.sent<Refused>());
    CHECK_THAT(test.sent<Refused>()->text, Catch::Contains("serves 2 jobs already"));
    CHECK(test.all<CloseConnection>().size() == 1);
    CHECK(test.host.run(JobId("a")) != nullptr);
}

TEST_CASE("the port's store is one job's, until its run is over") {
    Fixture test;
    Join on_port = join_of("a");
    on_port.store = {.host = "", .port = 0};
    test.receive(1, on_port);
    REQUIRE(test.host.job_on_port() != nullptr);
    CHECK(*test.host.job_on_port() == JobId("a"));
    Join other = on_port;
    other.job = JobId("b");
    test.receive(2, other);
    REQUIRE(test.sent<Refused>());
    CHECK_THAT(test.sent<Refused>()->text, Catch::Contains("serves that of job a"));
    CHECK(test.host.size() == 1);
    test.effects.clear();
    test.host.stop(test.effects);
    CHECK(test.all<CloseStore>().size() == 1);
    CHECK(test.host.job_on_port() == nullptr);
}

TEST_CASE("an order is answered once: unknown job, too many that wait, or no decision any more") {
    Fixture test;
    test.order(1, "a");
    REQUIRE(test.all<AnswerOrder>().size() == 1);
    CHECK(test.all<AnswerOrder>()[0].reply.fault == OrderFault::Unknown);
    test.receive(1, join_of("a"));
    for (const std::uint64_t number : {2, 3}) {
        test.order(number, "a");
        CHECK(test.all<AnswerOrder>().empty());  // their record is not written yet
    }
    test.order(4, "a");
    REQUIRE(test.all<AnswerOrder>().size() == 1);
    CHECK_THAT(test.all<AnswerOrder>()[0].reply.text, Catch::Contains("2 orders wait"));
    test.effects.clear();
    test.host.stop(test.effects);
    REQUIRE(test.all<AnswerOrder>().size() == 2);
    CHECK(test.all<AnswerOrder>()[0].number == 2);
    CHECK(test.all<AnswerOrder>()[1].number == 3);
    CHECK(test.all<EraseJobRecord>().empty());
}

TEST_CASE(
    "one of several sends agents to the leader, keeps them until there is one, then decides") {
    Fixture test({.is_one_of_several = true});
    CHECK(test.host.leader() == "");
    test.receive(1, join_of("a"));
    CHECK(test.effects.empty());
    CHECK(test.host.has_joined(ConnectionId(1)));
    test.effects.clear();
    test.host.follow("other:1", test.effects);
    CHECK(test.sent<Redirect>() == Redirect{"other:1"});
    CHECK(test.all<CloseConnection>().size() == 1);

    test.effects.clear();
    test.host.follow("", test.effects);
    test.receive(2, join_of("a"));
    test.effects.clear();
    test.host.lead(
        at(0), {}, [](Instant) { return true; }, test.effects);
    CHECK_FALSE(test.host.leader());
    CHECK(test.host.run(JobId("a")) != nullptr);
    CHECK(*test.host.job_of(ConnectionId(2)) == JobId("a"));

    test.effects.clear();
    test.host.follow("other:1", test.effects);
    REQUIRE(test.all<DropConnection>().size() == 1);
    CHECK(test.all<DropConnection>()[0].connection == ConnectionId(2));
    CHECK(test.host.size() == 0);
    CHECK(test.all<EraseJobRecord>().empty());  // the next leader goes on with it
}

TEST_CASE("a lease that ends is judged only after all was read that has arrived") {
    Fixture test;
    test.receive(1, join_of("a"));
    std::optional<SetJobTimer> timer;
    const auto take_timer = [&] {
        for (const SetJobTimer& set : test.all<SetJobTimer>()) {
            timer = set;
        }
    };
    take_timer();
    bool has_read = false;
    for (int turns = 0; timer && !has_read && turns < 100; ++turns) {
        const SetJobTimer fired = *timer;
        timer.reset();
        test.effects.clear();
        test.host.timer_fired(fired.at, fired.life, test.effects);
        take_timer();
        const std::vector<ReadArrived> reads = test.all<ReadArrived>();
        if (!reads.empty()) {
            has_read = true;
            CHECK(std::holds_alternative<ReadArrived>(test.effects.back()));
            CHECK(test.all<Send>().empty());  // no verdict on a node yet
            test.effects.clear();
            test.host.nothing_more_arrived(fired.at, reads[0].life, test.effects);
        }
    }
    CHECK(has_read);
}

TEST_CASE("timers and answers of an earlier life of a job are void") {
    Fixture test;
    test.receive(1, join_of("a"));
    REQUIRE_FALSE(test.all<WriteJobRecord>().empty());
    const WriteJobRecord write = test.all<WriteJobRecord>()[0];
    test.effects.clear();
    test.host.stop(test.effects);
    test.receive(2, join_of("a"));
    test.effects.clear();
    test.host.written(at(1), write.life, write.write.number, "no space", test.effects);
    test.host.timer_fired(at(1), write.life, test.effects);
    CHECK(test.effects.empty());
}

TEST_CASE("a daemon that ends when idle waits for a first agent, and for one that it lost") {
    Fixture test({.exits_when_idle = true, .idle_start_timeout = Milliseconds(30000)});
    REQUIRE(test.all<SetIdleTimer>().size() == 1);
    CHECK(test.all<SetIdleTimer>()[0].at == at(30000));
    CHECK_FALSE(test.host.is_idle());
    test.host.wait_is_over();
    CHECK(test.host.is_idle());
    test.end(7, PeerEnd::ClosedHere);
    CHECK(test.host.is_idle());
    test.end(8, PeerEnd::Lost, 500);
    REQUIRE(test.all<SetIdleTimer>().size() == 1);
    CHECK(test.all<SetIdleTimer>()[0].at == at(30500));
    CHECK_FALSE(test.host.is_idle());
    test.receive(9, join_of("a"));
    CHECK_FALSE(test.host.is_idle());  // its run goes on
    CHECK(test.host.has_had_any());
}

TEST_CASE("a record of another job, or one that cannot be read, is left out with a line") {
    Fixture test({.is_one_of_several = true});
    test.host.lead(
        at(0), {{JobId("a"), "no record"}}, [](Instant) { return true; }, test.effects);
    CHECK(test.host.size() == 0);
    REQUIRE(test.all<Trace>().size() == 1);
    CHECK_THAT(test.all<Trace>()[0].text, Catch::Contains("record of job a cannot be read"));
}

}  // namespace
}  // namespace ddprun::rdzv
