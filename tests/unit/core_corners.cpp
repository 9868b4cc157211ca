#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "rendezvous/core/coordinator.hpp"
#include "rendezvous/core/first_failure.hpp"
#include "rendezvous/core/run.hpp"
#include "tests/support/catch.hpp"
#include "worker_runtime/contract/exit_codes.hpp"

namespace ddprun::rdzv {

namespace {

Join join_of(const std::string& name, int nodes, int slots = 1) {
    Join join;
    join.job = JobId("job");
    join.node = NodeId(name);
    join.hostname = name;
    join.slots = slots;
    join.addresses = {"10.0.0." + name, "shared"};
    join.store = {name, 1};
    join.settings.min_nodes = nodes;
    join.settings.max_nodes = nodes;
    return join;
}

/// Drives one coordinator and keeps what it sent.
struct Driver {
    explicit Driver(Limits limits = {}) : coordinator(JobId("job"), {.limits = limits}, Rng(1)) {}

    void hear(std::uint64_t connection, const AgentMessage& message) {
        step(Received{ConnectionId(connection), message});
    }
    void tick(Milliseconds later) {
        now += later;
        step(Tick{});
    }
    void step(const Input& input) {
        coordinator.step(now, input, effects);
        for (std::vector<Effect>* const list : {&effects.now, &effects.after_record}) {
            std::erase_if(*list, [this](const Effect& effect) {
                const Publish* const published = std::get_if<Publish>(&effect);
                if (published != nullptr) {
                    events.push_back(published->event);
                }
                return published != nullptr;
            });
        }
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

    Coordinator coordinator;
    Instant now{};
    Effects effects;
    std::vector<Event> events;
};

WorkerFailed failure(int local_rank, Evidence evidence) {
    return {Generation(1), LocalRank(local_rank), std::move(evidence)};
}

Evidence exit_with(int code) {
    Evidence evidence;
    evidence.exit_code = code;
    return evidence;
}

}  // namespace

TEST_CASE("the end of a worker is described and becomes an exit code that is never 0") {
    Evidence evidence;
    CHECK(exit_code_of(evidence) == kExitInternal);
    evidence = exit_with(17);
    CHECK(describe_end(evidence) == "exited with code 17");
    CHECK(exit_code_of(evidence) == 17);
    CHECK(exit_code_of(exit_with(0)) == kExitInternal);
    CHECK(exit_code_of(exit_with(256)) == kExitInternal);
    CHECK(exit_code_of(exit_with(-1)) == kExitInternal);
    CHECK(exit_code_of(exit_with(255)) == 255);
    CHECK(exit_code_of(exit_with(1)) == 1);
    evidence = {};
    evidence.signal = 11;
    CHECK(describe_end(evidence) == "was killed by SIGSEGV");
    evidence.core_dumped = true;
    CHECK(describe_end(evidence) == "was killed by SIGSEGV (core dumped)");
    CHECK(exit_code_of(evidence) == 139);
    evidence.signal = 4000;
    CHECK(exit_code_of(evidence) == kExitInternal);
    CHECK(describe_end(evidence) == "was killed by signal 4000 (core dumped)");
    evidence.keeper_lost = true;
    CHECK(describe_end(evidence) == "died with its keeper");
    evidence = {};
    evidence.program = "./train";
    evidence.exec_errno = ENOENT;
    CHECK(describe_end(evidence) == "could not execute ./train: No such file or directory");
    CHECK(exit_code_of(evidence) == kExitNotFound);
    evidence.exec_errno = EACCES;
    CHECK(exit_code_of(evidence) == kExitNotExecutable);
    evidence.exec_errno = 99999;
    // Each C++ library has words of its own for what it does not know.
    CHECK(describe_end(evidence) ==
          "could not execute ./train: " + std::generic_category().message(99999));
}

TEST_CASE("evidence is kept within the limits and stays UTF-8") {
    Limits limits;
    limits.report_tail_bytes_max = 5;
    limits.report_text_bytes_max = 5;
    limits.error_file_bytes_max = 3;
    Evidence evidence;
    evidence.stderr_tail = "first last!";
    evidence.stdout_tail = "a\nbcd\ne\n";
    evidence.error_file = "{}{}";
    evidence.program = "abcd\u00e9f";
    evidence.log_dir = "abcde";
    const Evidence kept = trimmed(evidence, limits);
    CHECK(kept.stderr_tail == "last!");
    CHECK(kept.stdout_tail == "e\n");
    CHECK(kept.error_file.empty());
    CHECK(kept.program == "abcd");
    CHECK(kept.log_dir == "abcde");
}

TEST_CASE("of very many failures the earliest are kept and all are counted") {
    Limits limits;
    limits.failures_kept_max = 2;
    Driver driver(limits);
    driver.hear(1, join_of("a", 1, 8));
    driver.now += std::chrono::seconds(10);
    for (int rank = 0; rank < 8; ++rank) {
        Evidence evidence = exit_with(100 + rank);
        evidence.age = Milliseconds(rank == 5 ? 900 : 10 * rank);
        driver.hear(1, failure(rank, evidence));
    }
    driver.hear(1, Stopped{Generation(1), {"a", 2}});
    const std::vector<Verdict> verdicts = driver.sent<Verdict>(1);
    REQUIRE(verdicts.size() == 1);
    CHECK(verdicts[0].exit_code == 105);
    CHECK(verdicts[0].failure_count == 8);
    REQUIRE(verdicts[0].failures.size() == 2);
    CHECK(verdicts[0].failures[0].rank == Rank(5));
    CHECK(verdicts[0].failures[0].exit_code == 105);
    CHECK(verdicts[0].failures[1].rank == Rank(7));
}

TEST_CASE("the verdict has a line for each rank that failed, the earliest first, within a bound") {
    Limits limits;
    limits.failures_shown_max = 5;
    limits.failure_cause_bytes_max = 12;
    Driver driver(limits);
    driver.hear(1, join_of("a", 1, 8));
    driver.now += std::chrono::seconds(10);
    const auto fail = [&driver](int rank, Milliseconds age, Evidence evidence) {
        evidence.age = age;
        driver.hear(1, failure(rank, evidence));
    };
    Evidence crashed;
    crashed.signal = 11;
    crashed.core_dumped = true;
    crashed.stdout_tail = "beside it\n";
    fail(0, Milliseconds(100), crashed);
    Evidence killed;
    killed.signal = 9;
    killed.stdout_tail = "beside it\n";
    killed.kernel_note = "Out of memory";
    fail(1, Milliseconds(200), killed);
    Evidence raised = exit_with(1);
    raised.stderr_tail = "Traceback (most recent call last):\n  f()\nValueError: bad batch 17\n";
    fail(2, Milliseconds(900), raised);
    Evidence missing;
    missing.exec_errno = EACCES;
    fail(3, Milliseconds(300), missing);
    fail(4, Milliseconds(400), exit_with(3));
    fail(5, Milliseconds(10), exit_with(3));
    driver.hear(1, Stopped{Generation(1), {"a", 2}});
    REQUIRE(driver.sent<Verdict>(1).size() == 1);
    const Verdict verdict = driver.sent<Verdict>(1)[0];
    std::string table;
    for (const FailedRank& failed : verdict.failures) {
        table += fmt::format("{} {} {}, {}, {} ms, {}\n", failed.hostname, failed.rank.value(),
                             failed.end, failed.exit_code, failed.at.count(), failed.cause);
    }
    CHECK(table ==
          "a 2 exit code 1, 1, 9100 ms, ValueError: …\n"
          "a 4 exit code 3, 3, 9600 ms, \n"
          "a 3 not executed, 126, 9700 ms, Permission d…\n"
          "a 1 SIGKILL, 137, 9800 ms, Out of memor…\n"
          "a 0 SIGSEGV (core), 139, 9900 ms, last on stdo…\n");
    CHECK(verdict.failure_count == 6);
    // The timeline has the failure that ended the job, with the cause that was unknown at first.
    REQUIRE(verdict.timeline.size() >= 2);
    CHECK(verdict.timeline[verdict.timeline.size() - 2].text ==
          "rank 2 on a exited with code 1: ValueError: bad batch 17");
}

namespace {

/// A join to a job of one node that grows to two half a minute after its beginning.
Join growing(const std::string& name) {
    Join join = join_of(name, 1);
    join.settings.max_nodes = 2;
    join.settings.patience = Milliseconds(0);
    join.settings.grow_delay = Milliseconds(30000);
    return join;
}

}  // namespace

TEST_CASE("what changes many times at once is explained once more, soon") {
    Driver driver;
    driver.hear(1, join_of("a", 1));
    driver.hear(2, join_of("b", 1));
    CHECK(driver.sent<Waiting>(2).size() == 1);
    driver.hear(3, join_of("c", 1));
    driver.hear(4, join_of("d", 1));
    CHECK(driver.sent<Waiting>(3).empty());
    const Milliseconds soon = Limits().explain_gather;
    CHECK(driver.coordinator.next_deadline() == driver.now + soon);
    driver.tick(soon);
    CHECK(driver.sent<Waiting>(2).size() == 1);
    CHECK(driver.sent<Waiting>(3).size() == 1);
    CHECK(driver.sent<Waiting>(4).size() == 1);
}

TEST_CASE("who waits for a group to grow is told anew when an operator holds it") {
    Driver driver;
    driver.hear(1, growing("a"));
    driver.tick(Limits().explain_gather);
    driver.hear(2, growing("b"));
    REQUIRE(!driver.sent<Waiting>(2).empty());
    CHECK(driver.sent<Waiting>(2).back().over_in == Milliseconds(29900));
    driver.coordinator.step(driver.now,
                            OrderGiven{.number = 1,
                                       .order = {.job = JobId("job"),
                                                 .action = OperatorAction::Hold,
                                                 .duration = Milliseconds(600000),
                                                 .by = "alice"},
                                       .from = "10.0.0.9"},
                            driver.effects);
    driver.tick(Milliseconds(1));
    CHECK(driver.sent<Waiting>(2).back().over_in > Milliseconds(599000));
}

TEST_CASE("who waits for a group to grow is told when that is, and when a node was empty") {
    Driver driver;
    const auto& node = growing;
    driver.hear(1, node("a"));
    driver.tick(Milliseconds(0));
    REQUIRE(driver.sent<Start>(1).size() == 1);
    driver.now += Milliseconds(4000);
    driver.hear(2, node("b"));
    REQUIRE(!driver.sent<Waiting>(2).empty());
    CHECK(driver.sent<Waiting>(2).back().text ==
          "generation 1 runs on 1 node; it will be drained and grown to take more in");
    CHECK(driver.sent<Waiting>(2).back().over_in == Milliseconds(26000));
    driver.tick(Milliseconds(26000));
    REQUIRE(driver.sent<Stop>(1).size() == 1);
    driver.now += Milliseconds(5000);
    driver.hear(1, Stopped{.generation = Generation(1),
                           .store = {"a", 2},
                           .ended_age = Milliseconds(700),
                           .empty_age = Milliseconds(1000000)});
    const auto empty =
        std::find_if(driver.events.begin(), driver.events.end(),
                     [](const Event& event) { return event.kind == EventKind::Empty; });
    REQUIRE(empty != driver.events.end());
    CHECK(number_of(*empty, "ended_ms_ago") == 700);
    CHECK(number_of(*empty, "proven_ms_ago") == 35000);  // its generation is no older
}

TEST_CASE("a failure is never older than its generation, whatever its report says") {
    Driver driver;
    driver.now += std::chrono::hours(1);
    driver.hear(1, join_of("a", 1, 3));
    driver.now += std::chrono::seconds(1);
    Evidence absurd = exit_with(2);
    absurd.age = Milliseconds(INT64_MAX / 2000000);
    Evidence negative = exit_with(3);
    negative.age = Milliseconds(-5);
    driver.hear(1, failure(2, absurd));
    driver.hear(1, failure(1, negative));
    const auto& failures = std::get<Stopping>(driver.coordinator.run()->phase).failures;
    REQUIRE(failures.size() == 2);
    CHECK(failures[0].at == driver.now - std::chrono::seconds(1));
    CHECK(failures[1].at == driver.now);
}

TEST_CASE("all rows of a generation agree and only group rank 0 gets the admission list") {
    Driver driver;
    driver.hear(1, join_of("a", 3, 2));
    driver.hear(2, join_of("b", 3, 3));
    driver.hear(3, join_of("c", 3, 1));
    const Start a = driver.sent<Start>(1).at(0);
    const Start b = driver.sent<Start>(2).at(0);
    const Start c = driver.sent<Start>(3).at(0);
    CHECK(a.digest == b.digest);
    CHECK(a.digest == c.digest);
    CHECK_FALSE(a.digest.empty());
    CHECK(a.world_size == 6);
    CHECK(c.base_rank == 5);
    CHECK(b.store == StoreAddress{"a", 1});
    CHECK(a.admitted ==
          std::vector<std::string>{"10.0.0.a", "10.0.0.b", "10.0.0.c", "a", "b", "c", "shared"});
    CHECK(b.admitted.empty());
    CHECK(driver.coordinator.run()->current.rows.at(NodeId("b")) == b);
}

TEST_CASE("a store for everybody has no admission list, and all nodes must agree on that") {
    Driver driver;
    Join first = join_of("a", 2);
    first.settings.store_admits_any = true;
    driver.hear(1, first);
    driver.hear(2, join_of("b", 2));
    REQUIRE(driver.sent<Refused>(2).size() == 1);
    CHECK(driver.sent<Refused>(2).front().text ==
          "join refused: node b asks --store-admit members but job job was opened with any; start "
          "it with --store-admit any or under another --rdzv-id");
    Join second = join_of("b", 2);
    second.settings.store_admits_any = true;
    driver.hear(3, second);
    REQUIRE(driver.sent<Start>(1).size() == 1);
    CHECK(driver.sent<Start>(1).front().admitted.empty());
}

TEST_CASE("a generation has no more workers than their store serves, and the others wait") {
    Driver driver;
    const auto node = [](const std::string& name, int slots) {
        Join join = join_of(name, 2, slots);
        join.settings.max_nodes = 4;
        join.workers_max = 24;
        return join;
    };
    driver.hear(1, node("1", 4));
    driver.hear(2, node("2", 8));
    driver.hear(3, node("3", 8));  // the third fills it: no other node is waited for
    REQUIRE(driver.sent<Start>(1).size() == 1);
    CHECK(driver.sent<Start>(1).front().world_size == 20);
    driver.hear(4, node("4", 8));
    driver.tick(Limits().explain_gather);
    REQUIRE(!driver.sent<Waiting>(4).empty());
    driver.tick(Milliseconds(60000));
    CHECK(driver.sent<Stop>(1).empty());  // it does not grow
    CHECK(driver.sent<Waiting>(4).back().text ==
          "generation 1 runs on 3 nodes; this node is a spare and takes over when one is lost; "
          "the workers of more nodes would be more than the 24 that their store serves; with "
          "--store-relay on, on every node, it serves more");
    driver.hear(5, node("5", 13));  // two of these would be too many
    REQUIRE(driver.sent<Refused>(5).size() == 1);
    CHECK(driver.sent<Refused>(5).front().text ==
          "join refused: node 5 has --nproc-per-node 13: 2 nodes of 13 workers, the fewest of job "
          "job, are more than the 24 that the workers' store serves; start fewer; with "
          "--store-relay on, on every node, it serves more");
}

TEST_CASE("a large node bounds the job by what its store serves only while it is here") {
    Driver driver;
    const auto node = [](const std::string& name, int slots) {
        Join join = join_of(name, 2, slots);
        join.settings.max_nodes = 4;
        join.workers_max = 24;
        return join;
    };
    driver.hear(1, node("1", 4));
    CHECK(maximum(*driver.coordinator.run()) == 4);
    driver.hear(2, node("2", 12));
    CHECK(maximum(*driver.coordinator.run()) == 2);
    driver.hear(2, Goodbye{});
    CHECK(maximum(*driver.coordinator.run()) == 4);
}

TEST_CASE("the first node may be lost when it has finished and the store is not its own") {
    const bool is_its_own = GENERATE(false, true);
    Driver driver;
    for (const std::uint64_t i : {std::uint64_t{1}, std::uint64_t{2}}) {
        Join join = join_of(std::to_string(i), 2);
        join.store.port = is_its_own ? 1 : 0;
        driver.hear(i, join);
    }
    driver.hear(1, WorkerFinished{.generation = Generation(1), .local_rank = LocalRank(0)});
    driver.coordinator.step(
        driver.now, ConnectionEnded{.connection = ConnectionId(1), .is_end_of_stream = true},
        driver.effects);
    CHECK(driver.sent<Stop>(2).size() == (is_its_own ? 1 : 0));
}

TEST_CASE("the store of a generation that is taken over without a journal is its members' only") {
    Driver driver;
    Join join = join_of("7", 1);
    join.run_token = "t";
    join.held = HeldGeneration{.generation = Generation(3), .digest = "d", .store = {"7", 0}};
    driver.hear(1, join);
    for (int i = 0; i < 10 && driver.coordinator.next_deadline(); ++i) {
        driver.now = *driver.coordinator.next_deadline();
        if (std::holds_alternative<Running>(driver.coordinator.run()->phase)) {
            break;
        }
        driver.coordinator.step(driver.now, Tick{}, driver.effects);
    }
    const Run& run = *driver.coordinator.run();
    REQUIRE(std::holds_alternative<Running>(run.phase));
    CHECK(run.current.number == Generation(3));
    CHECK(run.current.store.port == 0);
    CHECK(run.current.admitted == std::vector<std::string>{"10.0.0.7", "7", "shared"});
}

TEST_CASE("the same seed gives the same tokens and digests, another seed others") {
    const auto digest = [](std::uint64_t seed) {
        Coordinator coordinator(JobId("job"), {}, Rng(seed));
        Effects effects;
        coordinator.step(Instant{}, Received{ConnectionId(1), join_of("a", 1)}, effects);
        return coordinator.run()->token + coordinator.run()->current.digest;
    };
    CHECK(digest(1) == digest(1));
    CHECK(digest(1) != digest(2));
}

TEST_CASE("a start and a verdict wait for their record, what was decided before them does not") {
    Driver driver;
    driver.hear(1, join_of("a", 2));
    CHECK(driver.effects.record == RecordWrite::None);
    driver.effects = {};
    // The node that made the start possible is answered at once, so that it can beat.
    driver.hear(2, join_of("b", 2));
    const auto send = [](const Effect& effect) { return std::get<Send>(effect).message; };
    const Effects start = std::exchange(driver.effects, {});
    REQUIRE(start.now.size() == 2);
    CHECK(std::get<Trace>(start.now.at(0)).text == "node b joined");
    CHECK(std::holds_alternative<Accepted>(send(start.now.at(1))));
    CHECK(start.record == RecordWrite::Awaited);
    REQUIRE(start.after_record.size() == 3);
    CHECK(std::get<Trace>(start.after_record.at(0)).text ==
          "generation 1 started: 2 nodes, 2 workers");
    CHECK(std::holds_alternative<Start>(send(start.after_record.at(1))));

    // A stop is written behind.
    driver.hear(1, failure(0, exit_with(1)));
    CHECK(driver.effects.record == RecordWrite::Behind);
    CHECK(driver.effects.after_record.empty());
    driver.hear(1, Stopped{.generation = Generation(1)});
    driver.effects = {};
    driver.hear(2, Stopped{.generation = Generation(1)});
    REQUIRE(driver.effects.now.size() == 1);
    CHECK(std::get<Trace>(driver.effects.now.at(0)).text == "node b is empty");
    CHECK(driver.effects.record == RecordWrite::Awaited);
    CHECK(std::holds_alternative<Verdict>(send(driver.effects.after_record.at(1))));
}

TEST_CASE("the last node that is released waits for the record of its run's end") {
    Driver driver;
    driver.hear(1, join_of("a", 1));
    driver.hear(1, Leave{15});
    driver.effects = {};
    driver.hear(1, Stopped{.generation = Generation(1)});
    CHECK(driver.effects.record == RecordWrite::Awaited);
    CHECK(driver.sent<Released>(1).size() == 1);
    for (const Effect& effect : driver.effects.now) {
        CHECK(std::holds_alternative<Trace>(effect));
    }
}

TEST_CASE("a failure is described with step, cause and where its logs are, within the limit") {
    FailureReport failure;
    failure.rank = Rank(3);
    failure.hostname = "gpu-07";
    failure.evidence.exit_code = 1;
    CHECK(describe_failure(failure, Limits()) == "rank 3 on gpu-07 exited with code 1");
    failure.evidence.progress = 41;
    failure.evidence.stderr_tail = "step 41\nValueError: a\x1b[31mb\x01\n";
    failure.evidence.log_dir = "/logs/llama_01234567/attempt_0/3";
    CHECK(describe_failure(failure, Limits()) ==
          "rank 3 on gpu-07 exited with code 1 at step 41: ValueError: ab\\x01; logs in "
          "/logs/llama_01234567/attempt_0/3");
    failure.evidence.stderr_tail = {};
    failure.evidence.stdout_tail = "step 41 done\n";
    CHECK(describe_failure(failure, Limits()) ==
          "rank 3 on gpu-07 exited with code 1 at step 41; its last line on stdout: step 41 done; "
          "logs in /logs/llama_01234567/attempt_0/3");
    failure.evidence.stderr_tail = std::string(10000, 'x');
    const std::string cut = describe_failure(failure, Limits());
    CHECK(cut.size() <= Limits().cause_bytes_max);
    CHECK(cut.ends_with("x…; logs in /logs/llama_01234567/attempt_0/3"));
}

TEST_CASE("failures are alike by their end and last line, not by numbers") {
    Evidence one = exit_with(1);
    one.stderr_tail = "[rank0]: ModuleNotFoundError: No module named 'x' (pid 7)\n";
    Evidence other = one;
    other.stderr_tail = "[rank12]: ModuleNotFoundError: No module named 'x' (pid 123)\n";
    CHECK(likeness_of(one) == likeness_of(other));
    other.stderr_tail = "another\n";
    CHECK(likeness_of(one) != likeness_of(other));
    CHECK(likeness_of(exit_with(1)) != likeness_of(exit_with(2)));
    one.progress = 0;
    CHECK(likeness_of(one).empty());
    Evidence killed;
    killed.signal = SIGKILL;
    CHECK(likeness_of(killed).empty());
    killed.kernel_note = "Out of memory: Killed process 7 (python)";
    CHECK_FALSE(likeness_of(killed).empty());
    killed.signal = SIGSEGV;
    killed.kernel_note.clear();
    CHECK_FALSE(likeness_of(killed).empty());
}

TEST_CASE("the restart's reason and the timeline have what was learned after the order") {
    Driver driver;
    Join join = join_of("a", 1);
    join.settings.max_restarts = 9;
    driver.hear(1, join);
    WorkerFailed failed{Generation(1), LocalRank(0), exit_with(1)};
    failed.evidence.log_dir = "/logs/0";
    driver.hear(1, failed);
    failed.evidence.stderr_tail = "ValueError: boom\n";
    driver.hear(1, failed);
    driver.hear(1, Stopped{Generation(1), {"a", 2}});
    const std::string why = "rank 0 on a exited with code 1: ValueError: boom; logs in /logs/0";
    REQUIRE(driver.sent<Start>(1).size() == 2);
    CHECK(driver.sent<Start>(1)[1].why == why);
    const std::vector<TimelineEvent>& timeline = driver.coordinator.run()->timeline;
    REQUIRE(timeline.size() == 3);
    CHECK(timeline[1].text == why);
}

TEST_CASE("three failures alike before any step are named once; each still gets its restart") {
    Driver driver;
    Join join = join_of("a", 1);
    join.settings.max_restarts = 9;
    driver.hear(1, join);
    const auto fail = [&](std::uint64_t generation, int exit_code,
                          std::optional<std::uint64_t> step = {}) {
        WorkerFailed failed{Generation(generation), LocalRank(0), exit_with(exit_code)};
        failed.evidence.progress = step;
        failed.evidence.stderr_tail = "ImportError: x (" + std::to_string(generation) + ")\n";
        driver.effects = Effects();
        driver.hear(1, failed);
        driver.hear(1, Stopped{Generation(generation), {"a", 2}});
        CHECK(driver.sent<Start>(1).size() == 1);
        return driver.sent<Notice>(1);
    };
    CHECK(fail(1, 1).empty());
    CHECK(fail(2, 1).empty());
    const std::vector<Notice> told = fail(3, 1);
    REQUIRE(told.size() == 1);
    CHECK(told[0].text ==
          "the last 3 failures are the same (exited with code 1: ImportError: x (3)), and no step "
          "was told before them: a restart seems not to mend it");
    CHECK(fail(4, 1).empty());
    CHECK(fail(5, 2).empty());
    CHECK(fail(6, 1, 17).empty());
    CHECK(fail(7, 1).empty());
    CHECK(fail(8, 1).empty());
    CHECK(fail(9, 1).size() == 1);
}

TEST_CASE("the first by group rank that asked for it hears what people are to be told") {
    Driver driver;
    const auto told = [&driver](std::uint64_t connection) {
        std::string words;
        for (const Happened& happened : driver.sent<Happened>(connection)) {
            const std::size_t at = happened.event.find(':') + 2;
            words += happened.event.substr(at, happened.event.find('"', at) - at) + " ";
        }
        return words;
    };
    for (std::uint64_t i = 1; i <= 4; ++i) {
        Join join = join_of("n" + std::to_string(i), 3);
        join.settings.max_restarts = 1;
        join.hears_events = i != 1;
        driver.hear(i, join);
    }
    CHECK(driver.sent<Start>(1).size() == 1);
    // Group rank 0 has not asked, and no other node is told of spares.
    CHECK(told(2).empty());
    driver.hear(3, WorkerFailed{Generation(1), LocalRank(0), exit_with(1)});
    for (std::uint64_t i = 1; i <= 3; ++i) {
        driver.hear(i, Stopped{Generation(1), {"n", 2}});
    }
    CHECK(told(2) == "restart ");
    driver.hear(3, WorkerFailed{Generation(2), LocalRank(0), exit_with(1)});
    for (std::uint64_t i = 1; i <= 3; ++i) {
        driver.hear(i, Stopped{Generation(2), {"n", 3}});
    }
    CHECK(told(1).empty());
    CHECK(told(2) == "restart verdict ");
    CHECK(told(3).empty());
    CHECK(told(4).empty());
}

TEST_CASE("moments are told in their order, however late a node's word comes") {
    Driver driver;
    driver.hear(1, join_of("1", 1));
    driver.now += Milliseconds(5000);
    const auto reach = [&driver](Moment what, Milliseconds age, bool is_estimated) {
        driver.hear(1, Reached{.generation = Generation(1),
                               .moments = {{.what = what,
                                            .last = LocalRank(0),
                                            .age = age,
                                            .is_estimated = is_estimated}},
                               .step = {},
                               .hang = {}});
    };
    const bool is_estimated = GENERATE(false, true);
    reach(Moment::Main, Milliseconds(100), is_estimated);
    const Instant main = driver.events.back().at;
    CHECK(main == driver.now - Milliseconds(100));
    reach(Moment::GroupReady, Milliseconds(115), is_estimated);
    CHECK(driver.events.back().kind == EventKind::GroupReady);
    CHECK(driver.events.back().at == main);
    reach(Moment::FirstStep, Milliseconds(50), is_estimated);
    CHECK(driver.events.back().at == driver.now - Milliseconds(50));
}

/// The events of that kind that were published.
std::vector<Event> published(const Driver& driver, EventKind kind) {
    std::vector<Event> events;
    std::copy_if(driver.events.begin(), driver.events.end(), std::back_inserter(events),
                 [kind](const Event& event) { return event.kind == kind; });
    return events;
}

TEST_CASE("a save is published once, however often a node reports it") {
    Driver driver;
    for (std::uint64_t i = 1; i <= 2; ++i) {
        driver.hear(i, join_of(std::to_string(i), 2));
    }
    driver.now += Milliseconds(5000);
    SavesSeen seen{.local_rank = LocalRank(0),
                   .saved = 2,
                   .step = 1200,
                   .bytes = 4096,
                   .stall = Milliseconds(12),
                   .took = Milliseconds(800),
                   .age = Milliseconds(300),
                   .places = 1};
    const auto report = [&](std::uint64_t generation) {
        driver.hear(2, Reached{.generation = Generation(generation),
                               .moments = {},
                               .step = {},
                               .hang = {},
                               .saves = seen});
    };
    report(1);
    report(1);
    report(7);  // of no generation
    std::vector<Event> saved = published(driver, EventKind::CheckpointSaved);
    REQUIRE(saved.size() == 1);
    CHECK(saved[0].at == driver.now - Milliseconds(300));
    CHECK(saved[0].generation == Generation(1));
    CHECK(saved[0].rank == Rank(1));
    CHECK(saved[0].step == 1200u);
    CHECK(number_of(saved[0], "saves") == 2);
    CHECK(text_of(saved[0], "where") == "disk");
    seen.saved = 3;
    seen.failed = 1;
    seen.failed_reason = "the disk is full";
    seen.behind = "too slow";
    report(1);
    CHECK(published(driver, EventKind::CheckpointSaved).size() == 2);
    CHECK(number_of(published(driver, EventKind::CheckpointSaved)[1], "saves") == 1);
    REQUIRE(published(driver, EventKind::CheckpointFailed).size() == 1);
    CHECK(text_of(published(driver, EventKind::CheckpointFailed)[0], "reason") ==
          "the disk is full");
    CHECK(published(driver, EventKind::CheckpointBehind).size() == 1);
    seen.behind.clear();
    report(1);
    REQUIRE(published(driver, EventKind::CheckpointBehind).size() == 2);
    CHECK(text_of(published(driver, EventKind::CheckpointBehind)[1], "text").empty());
    seen.local_rank = LocalRank(1);  // a rank that the node has not
    seen.saved = 9;
    report(1);
    CHECK(published(driver, EventKind::CheckpointSaved).size() == 2);
}

/// The hang notices that users were given.
std::vector<Event> hang_notices(const Driver& driver) {
    std::vector<Event> notices;
    std::copy_if(driver.events.begin(), driver.events.end(), std::back_inserter(notices),
                 [](const Event& event) { return event.kind == EventKind::HangNotice; });
    return notices;
}

Reached hang_at(std::uint64_t generation, std::optional<std::uint64_t> step, int rank,
                Milliseconds looks_every = Milliseconds(100)) {
    return {.generation = Generation(generation),
            .moments = {},
            .step = {},
            .hang = HangSeen{.rank = Rank(rank),
                             .step = step,
                             .host = "n" + std::to_string(rank),
                             .collective = {},
                             .text = "no rank has told a step",
                             .looks_every = looks_every}};
}

TEST_CASE("a hang is told once, of who is furthest behind, when all nodes have looked") {
    Driver driver;
    for (std::uint64_t i = 1; i <= 3; ++i) {
        Join join = join_of(std::to_string(i), 3);
        join.settings.max_restarts = 1;
        join.hears_events = i == 1;
        driver.hear(i, join);
    }
    const auto told = [&driver] { return driver.sent<Happened>(1).size(); };
    driver.hear(1, hang_at(1, 41, 0));
    driver.hear(1, hang_at(1, 3, 0));  // a node counts once
    driver.hear(2, hang_at(1, 40, 1));
    CHECK(hang_notices(driver).empty());
    CHECK(driver.coordinator.next_deadline() == driver.now + Milliseconds(100));
    SECTION("the last of them tells it") {
        driver.hear(3, hang_at(1, 41, 2));
        REQUIRE(hang_notices(driver).size() == 1);
        CHECK(hang_notices(driver)[0].rank == Rank(1));
        CHECK(hang_notices(driver)[0].step == 40);
        CHECK(told() == 1);
    }
    SECTION("one that says nothing is not waited for for ever") {
        driver.tick(Milliseconds(100));
        REQUIRE(hang_notices(driver).size() == 1);
        CHECK(hang_notices(driver)[0].rank == Rank(1));
        CHECK(told() == 1);
        driver.hear(3, hang_at(1, 4, 2));  // too late
        driver.tick(Milliseconds(200));
        CHECK(hang_notices(driver).size() == 1);
    }
    SECTION("a sign of the whole job is told at once, and a rank that is none left out") {
        driver.hear(3, hang_at(1, std::nullopt, 3, Milliseconds(0)));
        REQUIRE(hang_notices(driver).size() == 1);
        CHECK(hang_notices(driver)[0].rank == std::nullopt);
        CHECK(text_of(hang_notices(driver)[0], "host") == "n3");
    }
    SECTION("the next generation begins anew") {
        driver.hear(3, WorkerFailed{Generation(1), LocalRank(0), exit_with(1)});
        driver.tick(Milliseconds(100));
        for (std::uint64_t i = 1; i <= 3; ++i) {
            driver.hear(i, Stopped{Generation(1), {std::to_string(i), 2}});
        }
        REQUIRE(driver.sent<Start>(3).size() == 2);
        CHECK(hang_notices(driver).empty());
        for (std::uint64_t i = 1; i <= 3; ++i) {
            driver.hear(i, hang_at(2, 50 + i, static_cast<int>(i) - 1));
        }
        REQUIRE(hang_notices(driver).size() == 1);
        CHECK(hang_notices(driver)[0].generation == Generation(2));
    }
}

TEST_CASE("a spare is told by group rank 0") {
    Driver driver;
    Join join = join_of("a", 1);
    join.hears_events = true;
    driver.hear(1, join);
    driver.hear(2, join_of("b", 1));
    REQUIRE(driver.sent<Happened>(1).size() == 1);
    CHECK(driver.sent<Happened>(1)[0].event ==
          R"({"notice":"spare","event":"spare","generation":1,"host":"b","node":"b"})");
}

TEST_CASE("the timeline keeps its beginning and its end") {
    Limits limits;
    limits.timeline_events_max = 4;
    Driver driver(limits);
    Join join = join_of("a", 1);
    join.settings.max_restarts = 9;
    driver.hear(1, join);
    for (std::uint64_t generation = 1; generation <= 9; ++generation) {
        driver.hear(1, WorkerFailed{Generation(generation), LocalRank(0), exit_with(1)});
        driver.hear(1, Stopped{Generation(generation), {"a", 2}});
    }
    const std::vector<TimelineEvent>& timeline = driver.coordinator.run()->timeline;
    REQUIRE(timeline.size() == 4);
    CHECK(timeline.front().text == "generation 1 started: 1 node, 1 worker");
    CHECK(timeline[1].text == "rank 0 on a exited with code 1");
    CHECK(timeline[2].text == "… rank 0 on a exited with code 1");
    CHECK(timeline.back().text == "generation 10 started: 1 node, 1 worker");
}

TEST_CASE("runs of very many nodes beat less often, never less than thrice a lease") {
    const auto interval_with = [](int nodes) {
        Driver driver;
        driver.hear(1, join_of("a", nodes));
        return driver.sent<Accepted>(1).at(0).beat_interval;
    };
    CHECK(interval_with(2) == Milliseconds(200));
    CHECK(interval_with(2000) == Milliseconds(200));
    CHECK(interval_with(3000) == Milliseconds(300));
    CHECK(interval_with(16384) == Milliseconds(333));
}

TEST_CASE("a full run takes no further node") {
    Limits limits;
    limits.nodes_max = 2;
    Driver driver(limits);
    driver.hear(1, join_of("a", 2));
    driver.hear(2, join_of("b", 2));
    driver.hear(3, join_of("c", 2));
    REQUIRE(driver.sent<Refused>(3).size() == 1);
    CHECK(driver.sent<Refused>(3)[0].text ==
          "join refused: job job already has 2 nodes, the most this rendezvous takes; start node c "
          "once one of them has gone");
    CHECK(driver.coordinator.run()->nodes.size() == 2);
}

TEST_CASE("what is remembered of those that have gone is bounded") {
    Limits limits;
    limits.nodes_max = 3;
    Driver driver(limits);
    driver.hear(1, join_of("a", 2));
    for (std::uint64_t i = 2; i < 12; ++i) {
        driver.hear(i, join_of("n" + std::to_string(i), 2));
        driver.hear(i, Leave{15});
        driver.hear(i, Goodbye{});
    }
    // Each joined as the second of two, so each started a generation and left it.
    CHECK(driver.coordinator.run()->departed.size() <= 3);
    CHECK(driver.coordinator.run()->departing.empty());
}

TEST_CASE("whoever is not fit, and however many are, no more than the limit are kept") {
    CoordinatorOptions options;
    options.limits.nodes_max = 2;
    Coordinator coordinator(JobId("job"), options, Rng(1));
    Instant now{};
    std::uint64_t connection = 1;
    const auto say_unfit = [&](const std::string& name) {
        const Unfit unfit{
            .job = JobId("job"), .node = NodeId(name), .hostname = name, .why = "its fan"};
        Effects effects;
        coordinator.step(now, Received{ConnectionId(++connection), unfit}, effects);
        REQUIRE(effects.now.size() >= 2);
        CHECK(std::get<Refused>(std::get<Send>(effects.now[0]).message).exit_code == kExitUnfit);
        CHECK(std::holds_alternative<CloseConnection>(effects.now[1]));
    };
    say_unfit("x0");
    say_unfit("x1");
    now += Milliseconds(1000);
    say_unfit("x2");
    CHECK(coordinator.run() == nullptr);
    CHECK_FALSE(coordinator.is_empty());
    // The quarantines of x0 and x1 are over; that of x2, had it been kept, would still last.
    now += Limits().quarantine_cooldown - Milliseconds(500);
    Effects effects;
    coordinator.step(now, Received{ConnectionId(1), join_of("a", 2)}, effects);
    CHECK(coordinator.run()->quarantined.empty());
    say_unfit("y0");
    say_unfit("y1");
    say_unfit("y2");
    CHECK(coordinator.run()->quarantined.size() == 2);
    CHECK_FALSE(coordinator.run()->quarantined.contains(NodeId("y2")));
    // Those that are known are renewed all the same.
    now += Milliseconds(1000);
    say_unfit("y1");
    CHECK(coordinator.run()->quarantined.at(NodeId("y1")).until ==
          now + Limits().quarantine_cooldown);
    CHECK(coordinator.run()->nodes.size() == 1);
}

TEST_CASE("of a held generation only numbers that can be are believed") {
    const int huge = std::numeric_limits<int>::max();
    const auto outcome = [](const auto& change) {
        Join join = join_of("a", 4, 2);
        join.settings.max_restarts = 3;
        join.run_token = "earlier";
        join.held = HeldGeneration{.generation = Generation(7),
                                   .digest = "d",
                                   .group_rank = 1,
                                   .group_world_size = 3,
                                   .base_rank = 2,
                                   .world_size = 6,
                                   .restart_count = 3,
                                   .node_losses = 2,
                                   .store = {"a", 1}};
        change(join);
        Driver driver;
        driver.hear(1, join);
        driver.now += Limits().adoption_patience;
        driver.coordinator.step(driver.now, Tick{}, driver.effects);
        const Run& run = *driver.coordinator.run();
        const Stopping* stopping = std::get_if<Stopping>(&run.phase);
        if (stopping != nullptr) {
            return fmt::format("adopted, {} missing, {} restarts, {} losses",
                               stopping->lost_nodes.size(), run.budgets.restarts_used,
                               run.budgets.node_losses_used);
        }
        // It is fenced like any that holds a generation which does not go on.
        CHECK(driver.sent<Stop>(1).at(0).cause == StopCause::Fenced);
        CHECK(run.current.floor == Generation(7));
        const Trace& line = std::get<Trace>(driver.effects.now.at(0));
        CHECK(line.text.find("node a says what cannot be of generation 7") == 0);
        return std::string("not adopted");
    };
    CHECK(outcome([](Join&) {}) == "adopted, 2 missing, 3 restarts, 2 losses");
    CHECK(outcome([=](Join& join) { join.held->group_world_size = huge; }) == "not adopted");
    CHECK(outcome([](Join& join) { join.held->group_world_size = 5; }) == "not adopted");
    CHECK(outcome([=](Join& join) { join.held->group_rank = huge; }) == "not adopted");
    CHECK(outcome([](Join& join) { join.held->group_rank = 3; }) == "not adopted");
    CHECK(outcome([=](Join& join) { join.held->base_rank = huge; }) == "not adopted");
    CHECK(outcome([](Join& join) { join.held->base_rank = 5; }) == "not adopted");
    CHECK(outcome([=](Join& join) { join.held->world_size = huge; }) == "not adopted");
    CHECK(outcome([](Join& join) { join.held->world_size = 1; }) == "not adopted");
    CHECK(outcome([](Join& join) { join.held->restart_count = 4; }) == "not adopted");
    CHECK(outcome([=](Join& join) { join.held->node_losses = huge; }) == "not adopted");
    CHECK(outcome([](Join& join) { join.settings.max_node_losses = 1; }) == "not adopted");
    CHECK(outcome([=](Join& join) {
              join.settings.max_node_losses = huge;
              join.held->node_losses = huge;
          }) == "not adopted");
}

TEST_CASE("an adopted generation has the memory partners that its nodes were told") {
    const auto partner_of_b = [](bool is_whole) {
        Driver driver;
        for (const int rank : {0, 1, 2}) {
            Join join = join_of(std::string(1, static_cast<char>('a' + rank)), 3);
            join.topology_key = rank < 2 ? "r1" : "r2";
            join.settings.memory_replicas = 1;
            join.run_token = "earlier";
            join.held = HeldGeneration{.generation = Generation(7),
                                       .digest = "d",
                                       .group_rank = rank,
                                       .group_world_size = 3,
                                       .base_rank = rank,
                                       .world_size = 3,
                                       .store = {"a", 1}};
            if (is_whole || rank > 0) {
                driver.hear(static_cast<std::uint64_t>(rank) + 1, join);
            }
        }
        driver.tick(Limits().adoption_patience);
        return driver.coordinator.run()->current.rows.at(NodeId("b")).memory_partner;
    };
    CHECK(partner_of_b(true) == 0);
    CHECK_FALSE(partner_of_b(false).has_value());
}

TEST_CASE("of very many missing and waiting nodes only the first are named") {
    Driver driver;
    for (int i = 1; i <= 20; ++i) {
        driver.hear(static_cast<std::uint64_t>(i), join_of("n" + std::to_string(i), 30));
    }
    CHECK(driver.coordinator.explain() ==
          "waiting for 10 nodes more: 20 of 30 here (n1, n10, n11, n12, n13, n14, n15, n16 and 12 "
          "more)");
}

TEST_CASE("those who wait are told who was turned away, and how much of their time is over") {
    Driver driver;
    driver.hear(1, join_of("a", 3));
    driver.now += Milliseconds(5000);
    driver.hear(2, join_of("b", 2));
    REQUIRE(driver.sent<Refused>(2).size() == 1);
    REQUIRE(driver.sent<Waiting>(1).size() == 1);
    const Waiting waiting = driver.sent<Waiting>(1)[0];
    CHECK(waiting.text == "waiting for 2 nodes more: 1 of 3 here (a); turned away: " +
                              driver.sent<Refused>(2)[0].text);
    CHECK(waiting.waited == Milliseconds(5000));
    CHECK(waiting.limit == Milliseconds(600000));
    driver.hear(3, join_of("b", 3));
    driver.hear(4, join_of("c", 3));
    REQUIRE(driver.sent<Start>(1).size() == 1);
    CHECK(driver.coordinator.run()->turned_away.empty());
}

TEST_CASE("those who wait are told of strangers, each address at once, how often with the next") {
    Driver driver;
    const auto refuse = [&driver](const std::string& address, const std::string& why) {
        driver.coordinator.step(driver.now, StrangerRefused{.address = address, .why = why},
                                driver.effects);
    };
    driver.hear(1, join_of("a", 2));
    refuse("10.0.0.7", "its secret is not ours");
    REQUIRE(driver.sent<Waiting>(1).size() == 1);
    CHECK(driver.sent<Waiting>(1)[0].text ==
          "waiting for 1 node more: 1 of 2 here (a); turned away: 10.0.0.7: its secret is not "
          "ours");
    refuse("10.0.0.7", "its secret is not ours");
    refuse("10.0.0.7", "its secret is not ours");
    CHECK(driver.sent<Waiting>(1).size() == 1);
    refuse("10.0.0.8", "it was started with --insecure, we were not");
    REQUIRE(driver.sent<Waiting>(1).size() == 2);
    CHECK(driver.sent<Waiting>(1)[1].text ==
          "waiting for 1 node more: 1 of 2 here (a); turned away: 10.0.0.7 (3 times), 10.0.0.8: "
          "it was started with --insecure, we were not");
    CHECK(driver.coordinator.explain() == driver.sent<Waiting>(1)[1].text);

    driver.hear(2, join_of("b", 2));
    REQUIRE(driver.sent<Start>(1).size() == 1);
    refuse("10.0.0.7", "its secret is not ours");
    refuse("10.0.0.7", "its secret is not ours");
    REQUIRE(driver.sent<Notice>(1).size() == 1);
    CHECK(driver.sent<Notice>(1)[0].text == "turned away: 10.0.0.7: its secret is not ours");
}

TEST_CASE("of very many strangers some addresses are kept") {
    Strangers strangers;
    CHECK(strangers.add({.address = "a", .why = "x"}, 2));
    CHECK(strangers.add({.address = "b", .why = "x"}, 2));
    CHECK_FALSE(strangers.add({.address = "c", .why = "y"}, 2));
    CHECK_FALSE(strangers.add({.address = "b", .why = "z"}, 2));
    CHECK(strangers.text() == "a, b (2 times): z");
    for (int i = 0; i < 55; ++i) {
        strangers.add({.address = "b", .why = "z"}, 2);
    }
    CHECK(strangers.text() == "a, b (10 times or more): z");
}

TEST_CASE("a held-up loop judges no silence for a while, and a single process has no leases") {
    Driver driver;
    driver.hear(1, join_of("a", 2));
    driver.coordinator.step(driver.now, HeldUp{Milliseconds(700)}, driver.effects);
    CHECK(driver.coordinator.run()->doubt.until == driver.now + Limits{}.reconnect_grace);

    Coordinator alone(JobId("job"), {.limits = {}, .has_leases = false}, Rng(1));
    Effects effects;
    alone.step(Instant{}, Received{ConnectionId(1), join_of("a", 1)}, effects);
    alone.step(Instant{}, HeldUp{Milliseconds(700)}, effects);
    CHECK_FALSE(alone.next_deadline());
    alone.step(Instant{}, ConnectionEnded{ConnectionId(1), false}, effects);
    CHECK(alone.run()->nodes.empty());
}

}  // namespace ddprun::rdzv
