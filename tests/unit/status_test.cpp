// Goal: what people are told about a run is what the run is: phases, ranks, leases, budgets; and
// what does not fit is left out from the dull end. Method: a coordinator driven by hand.

#include "rendezvous/core/status.hpp"

#include <string>
#include <utility>
#include <vector>

#include "launcher/ctl/status_text.hpp"
#include "rendezvous/core/coordinator.hpp"
#include "rendezvous/core/run.hpp"
#include "rendezvous/wire/codec.hpp"
#include "rendezvous/wire/control.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/result_text.hpp"

namespace ddprun::rdzv {
namespace {

constexpr StatusExtent kAll{.nodes_max = 1000, .events_max = 1000};

struct Driver {
    explicit Driver(int nodes, int slots = 2) : nodes_(nodes), slots_(slots) {}

    void hear(std::uint64_t connection, const AgentMessage& message) {
        Effects ignored;
        coordinator.step(now, Received{ConnectionId(connection), message}, ignored);
    }
    void join(std::uint64_t connection, const std::string& name) {
        Join join;
        join.job = JobId("job");
        join.node = NodeId(name);
        join.hostname = "host-" + name;
        join.slots = slots_;
        join.store = {name, 1};
        join.settings.min_nodes = nodes_;
        join.settings.max_nodes = nodes_;
        join.settings.max_restarts = 3;
        hear(connection, join);
    }
    void cut(std::uint64_t connection) {
        Effects ignored;
        coordinator.step(now, ConnectionEnded{ConnectionId(connection), false}, ignored);
    }
    [[nodiscard]] JobStatus status(const StatusExtent& extent = kAll) const {
        return status_of(JobId("job"), *coordinator.run(), now, extent);
    }

    Coordinator coordinator{JobId("job"), {.limits = {}}, Rng(1)};
    Instant now{};

private:
    int nodes_;
    int slots_;
};

TEST_CASE("a forming job tells what it waits for and for how long") {
    Driver driver(3);
    driver.join(1, "a");
    driver.now += Milliseconds(700);
    driver.join(2, "b");
    driver.now += Milliseconds(300);
    const JobStatus status = driver.status();
    REQUIRE(status.phase == JobPhase::Forming);
    REQUIRE(status.age == Milliseconds(1000));
    REQUIRE(status.in_phase == Milliseconds(1000));
    REQUIRE(status.waits_for.find("waiting for 1 node more: 2 of 3 here") == 0);
    REQUIRE(status.waits_for == driver.coordinator.explain());
    REQUIRE(status.generation == Generation(0));
    REQUIRE(status.world_size == 0);
    REQUIRE(status.nodes.size() == 2);
    REQUIRE(status.nodes[0].standing == NodeStanding::Ready);
    REQUIRE(status.nodes[0].last_heard == Milliseconds(1000));
    REQUIRE(status.nodes[0].lease_left == Milliseconds(0));
    REQUIRE(status.nodes[1].last_heard == Milliseconds(300));
    REQUIRE(status.nodes[1].lease_left == Milliseconds(700));
    REQUIRE_FALSE(status.nodes[0].group_rank);
    REQUIRE(status.max_restarts == 3);
}

TEST_CASE("a running job tells who holds which ranks, and who is cut off or a spare") {
    Driver driver(2);
    driver.join(1, "b");
    driver.join(2, "a");
    driver.join(3, "z");
    driver.hear(2, WorkerFinished{Generation(1), LocalRank(1)});
    driver.hear(1, Leave{.signal = 15});
    const JobStatus stopping = driver.status();
    REQUIRE(stopping.phase == JobPhase::Stopping);
    REQUIRE_FALSE(stopping.waits_for.empty());
    driver.cut(1);
    const JobStatus status = driver.status();
    REQUIRE(status.generation == Generation(1));
    REQUIRE(status.world_size == 4);
    REQUIRE(status.nodes.size() == 3);
    REQUIRE(status.nodes[0].node == NodeId("a"));
    REQUIRE(status.nodes[0].group_rank == 0);
    REQUIRE(status.nodes[0].base_rank == 0);
    REQUIRE(status.nodes[0].finished == 1);
    REQUIRE(status.nodes[1].node == NodeId("b"));
    REQUIRE(status.nodes[1].base_rank == 2);
    REQUIRE(status.nodes[1].leaving == 15);
    REQUIRE(status.nodes[1].is_suspect);
    REQUIRE_FALSE(status.nodes[1].is_connected);
    REQUIRE(status.nodes[2].standing == NodeStanding::Spare);
    REQUIRE_FALSE(status.nodes[2].group_rank);
}

TEST_CASE("nodes that are left out and not here are told, as far as there is room beside nodes") {
    Driver driver(2);
    driver.join(1, "a");
    const auto say_unfit = [&](const std::string& name) {
        driver.hear(9, Unfit{.job = JobId("job"),
                             .node = NodeId(name),
                             .hostname = "host-" + name,
                             .why = "its fan"});
    };
    say_unfit("x");
    say_unfit("y");
    driver.now += Milliseconds(1000);
    const JobStatus status = driver.status();
    REQUIRE(status.nodes.size() == 1);
    REQUIRE(status.absent.size() == 2);
    REQUIRE(status.absent[0] == AbsentStatus{.node = NodeId("x"),
                                             .hostname = "host-x",
                                             .quarantined = Milliseconds(599000),
                                             .quarantine_why = "is not fit (its fan)"});
    REQUIRE(
        status.waits_for.ends_with("; host-x is not fit (its fan), host-y is not fit (its fan)"));
    REQUIRE(driver.status({.nodes_max = 2}).absent.size() == 1);
    REQUIRE(driver.status({.nodes_max = 2}).absent_left_out == 1);
    const StatusReply reply{.jobs = {status}};
    REQUIRE(decode<StatusReply>(encode(reply), Limits()).value() == reply);
    // Back again it is here, and its row says so.
    driver.join(2, "x");
    REQUIRE(driver.status().absent.size() == 1);
    REQUIRE(driver.status().nodes[1].quarantine_why == "is not fit (its fan)");
    driver.now += Milliseconds(600000);
    REQUIRE(driver.status().absent.empty());
}

TEST_CASE("a closed job tells its verdict") {
    Driver driver(1, 1);
    driver.join(1, "a");
    driver.hear(1, WorkerFinished{Generation(1), LocalRank(0)});
    driver.now += Milliseconds(5);
    const JobStatus status = driver.status();
    REQUIRE(status.phase == JobPhase::Closed);
    REQUIRE(status.in_phase == Milliseconds(5));
    REQUIRE(status.exit_code == 0);
    REQUIRE_FALSE(status.verdict.empty());
}

TEST_CASE("of many nodes those that need attention are listed, and of events the last") {
    Driver driver(10);
    for (std::uint64_t i = 0; i < 10; ++i) {
        driver.join(i, "n" + std::to_string(i));
    }
    driver.cut(8);
    const JobStatus status = driver.status({.nodes_max = 3, .events_max = 1});
    REQUIRE(status.nodes.size() == 3);
    REQUIRE(status.nodes_left_out == 7);
    REQUIRE(status.nodes[0].node == NodeId("n0"));
    REQUIRE(status.nodes[2].node == NodeId("n8"));
    REQUIRE(status.nodes[2].is_suspect);
    REQUIRE(status.events.size() == 1);
    REQUIRE(status.events[0] == driver.coordinator.run()->timeline.back());
    REQUIRE(static_cast<std::size_t>(status.events_left_out) + 1 ==
            driver.coordinator.run()->timeline.size());
    REQUIRE(driver.status({}).nodes_left_out == 10);
}

TEST_CASE("a status comes through its JSON unchanged, without the run's token") {
    Driver driver(2);
    driver.join(1, "a");
    driver.join(2, "b");
    driver.cut(2);
    StatusReply reply{.jobs = {driver.status()}, .jobs_left_out = 4};
    const std::string body = encode(reply);
    REQUIRE(body.find(driver.coordinator.run()->token) == std::string::npos);
    const Result<StatusReply> decoded = decode<StatusReply>(body, Limits());
    REQUIRE(decoded);
    REQUIRE(*decoded == reply);
    // Bytes that are no UTF-8 are replaced, not thrown over.
    reply.jobs[0].waits_for = "\xff\xfe";
    REQUIRE(decode<StatusReply>(encode(reply), Limits()));
}

TEST_CASE("an order and its answer come through their JSON unchanged, within their bounds") {
    const OperatorOrder order{.job = JobId("llama"),
                              .action = OperatorAction::Quarantine,
                              .node = "gpu-07",
                              .duration = Milliseconds(600000),
                              .nodes = 3,
                              .by = "alice@head"};
    REQUIRE(*decode<OperatorOrder>(encode(order), Limits()) == order);
    const OperatorReply reply{
        .fault = OrderFault::Conflict, .event = 1ULL << 63U, .text = "not as things are"};
    REQUIRE(*decode<OperatorReply>(encode(reply), Limits()) == reply);
    for (const std::string body :
         {R"({"type":"order"})", R"({"type":"ask_status","job":"x"})",
          R"({"type":"order","job":"x","action":"dance"})",
          R"({"type":"order","job":"x","nodes":-1})", R"({"type":"order","job":"x","for_ms":-1})",
          R"({"type":"order","job":"x","by":"\u0007"})"}) {
        INFO(body);
        REQUIRE_FALSE(decode<OperatorOrder>(body, Limits()));
    }
}

TEST_CASE("a question is read with its bounds") {
    REQUIRE(*decode<AskStatus>(encode(AskStatus{JobId("x")}), Limits()) == AskStatus{JobId("x")});
    REQUIRE(decode<AskStatus>(R"({"type":"ask_status"})", Limits()));
    for (const std::string body :
         {"", "[]", "{}", R"({"type":"join","job":"x"})", R"({"type":"ask_status","job":7})",
          R"({"type":"ask_status","job":"a\u0007"})"}) {
        INFO(body);
        REQUIRE_FALSE(decode<AskStatus>(body, Limits()));
    }
    const std::string deep =
        R"({"type":"ask_status","x":)" + std::string(40, '[') + std::string(40, ']') + "}";
    REQUIRE_FALSE(decode<AskStatus>(deep, Limits()));
    const std::string longest(Limits().name_bytes_max + 1, 'x');
    REQUIRE_FALSE(decode<AskStatus>(encode(AskStatus{JobId(longest)}), Limits()));
}

// ----------------------------------------------------------------------------------- for people

JobStatus example() {
    JobStatus job;
    job.job = JobId("llama");
    job.phase = JobPhase::Running;
    job.age = Milliseconds(7500000);
    job.in_phase = Milliseconds(65000);
    job.generation = Generation(4);
    job.waits_for = "generation 4 is finishing: gpu-7 still has workers";
    job.min_nodes = 1;
    job.max_nodes = 2;
    job.world_size = 9;
    job.restarts_used = 1;
    job.max_restarts = 3;
    job.nodes = {{.node = NodeId("x"),
                  .hostname = "gpu-7",
                  .standing = NodeStanding::Member,
                  .group_rank = 0,
                  .base_rank = 0,
                  .slots = 8,
                  .finished = 2,
                  .is_connected = true,
                  .last_heard = Milliseconds(104),
                  .lease_left = Milliseconds(896)},
                 {.node = NodeId("y"),
                  .hostname = "g\x1b[31m",
                  .standing = NodeStanding::Member,
                  .group_rank = 1,
                  .base_rank = 8,
                  .is_suspect = true,
                  .last_heard = Milliseconds(1200),
                  .leaving = 15,
                  .quarantined = Milliseconds(61000),
                  .quarantine_why = "is not fit (its fan)"}};
    job.absent = {{.node = NodeId("z"),
                   .hostname = "gpu-\x07",
                   .quarantined = Milliseconds(599000),
                   .quarantine_why = "is not fit (its disk)"}};
    job.absent_left_out = 2;
    job.events = {{Milliseconds(900), "generation 1 started"},
                  {Milliseconds(7435000), "generation 4 started"}};
    return job;
}

TEST_CASE("people read first what a job waits for, then a table, and no control character") {
    StatusReply reply{.jobs = {example()}};
    REQUIRE(launcher::status_text(reply) ==
            "job llama: running for 1 min 5 s, generation 4, 9 ranks, --nnodes 1:2\n"
            "  generation 4 is finishing: gpu-7 still has workers\n"
            "  used: 1 of 3 restarts, 0 node losses (no bound)\n"
            "  HOST    STANDING  GROUP  RANKS  SLOTS  HEARD       LEASE   NOTES\n"
            "  gpu-7   member    0      0-7    8      104 ms ago  896 ms  2 of 8 ranks done\n"
            "  g?[31m  member    1      8      1      1.2 s ago   0 ms    cut off, leaving after "
            "signal 15, left out for 1 min 1 s: it is not fit (its fan)\n"
            "  gpu-? is not here; left out for 9 min 59 s: it is not fit (its disk)\n"
            "  and 2 more that are not here\n"
            "  after      900 ms  generation 1 started\n"
            "  after   2 h 3 min  generation 4 started\n");
    reply.jobs.push_back({.job = JobId("bert"),
                          .phase = JobPhase::Closed,
                          .in_phase = Milliseconds(2000),
                          .max_node_losses = 0,
                          .exit_code = 71,
                          .verdict = "nodes are missing"});
    reply.jobs[1].not_durable = "disk full";
    reply.jobs[1].nodes_left_out = 5;
    reply.jobs_left_out = 2;
    const std::string text = launcher::status_text(reply);
    REQUIRE(text.substr(text.find("\njob bert")) ==
            "\njob bert: closed for 2.0 s, --nnodes 1\n"
            "  exit code 71: nodes are missing\n"
            "  not durable: disk full\n"
            "  used: 0 of 0 restarts, 0 of 0 node losses\n"
            "  and 5 more nodes\n"
            "\nand 2 more jobs; name one with --rdzv-id\n");
}

}  // namespace
}  // namespace ddprun::rdzv
