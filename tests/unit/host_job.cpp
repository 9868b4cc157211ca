// Goal: around one job's coordinator the right moment is chosen for everything: effects go in
// order, and those after an awaited record only when it is durable; a journal that fails or hangs
// is said and holds nothing up, except for one of several daemons; timers and stalls are not
// missed. Method: a JobHost with one member; the test is its clock, its timer and its journal.

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "rendezvous/core/run.hpp"
#include "rendezvous/host/job_host.hpp"
#include "tests/support/catch.hpp"
#include "tests/unit/host_inputs.hpp"

namespace ddprun::rdzv {
namespace {

const JobId kJob("test");
const ConnectionId kMember(1);

using test::at;

Join join_of(const std::string& node, const std::string& process = "p") {
    return test::join_of(kJob, node, process);
}

class Fixture {
public:
    explicit Fixture(Keeping keeping = Keeping::IfPossible) {
        HostOptions options;
        options.coordinator.limits = limits;
        options.keeping = keeping;
        options.may_decide = [this](Instant now) { return now < decides_until; };
        host.emplace(kJob, std::move(options), Rng(1));
    }

    void step(int ms, const Input& input) {
        host->step(at(ms), input, wanted);
        take_in();
    }
    void receive(int ms, const AgentMessage& message, ConnectionId from = kMember) {
        step(ms, Received{from, message});
    }
    /// Answers the oldest write.
    void answer(int ms, const std::string& fault = "") {
        REQUIRE(!unanswered.empty());
        const std::uint64_t number = unanswered.front();
        unanswered.erase(unanswered.begin());
        host->written(at(ms), number, fault, wanted);
        take_in();
    }
    void answer_badly(int ms) { answer(ms, "no space left"); }
    /// Lets time pass until `ms`, with a timer that is on time.
    void run_until(int ms) {
        while (timer && *timer <= at(ms)) {
            fire(*std::exchange(timer, std::nullopt));
        }
    }
    void fire(Instant now) {
        if (host->wakes(now, wanted)) {
            host->judge(now, wanted);
        }
        take_in();
    }

    /// How many messages of that kind have gone out.
    template <typename T>
    [[nodiscard]] std::size_t sent() const {
        return static_cast<std::size_t>(std::count_if(
            messages.begin(), messages.end(),
            [](const RendezvousMessage& message) { return std::holds_alternative<T>(message); }));
    }
    [[nodiscard]] bool has_noticed(const std::string& text) const {
        return std::any_of(messages.begin(), messages.end(), [&](const RendezvousMessage& one) {
            const Notice* notice = std::get_if<Notice>(&one);
            return notice != nullptr && notice->text.find(text) != std::string::npos;
        });
    }
    [[nodiscard]] bool has_said(const std::string& text) const {
        return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) {
            return line.find(text) != std::string::npos;
        });
    }
    [[nodiscard]] const Run& run() const { return *host->coordinator().run(); }

    Limits limits;
    Instant decides_until = Instant::max();
    std::optional<JobHost> host;
    HostEffects wanted;
    std::optional<Instant> timer;
    std::vector<RendezvousMessage> messages;
    std::vector<std::string> lines;
    std::vector<std::uint64_t> unanswered;
    std::vector<RunRecord> records;

private:
    void take_in() {
        for (const Effect& effect : wanted.now) {
            if (const Send* send = std::get_if<Send>(&effect)) {
                messages.push_back(send->message);
            } else if (const Trace* trace = std::get_if<Trace>(&effect)) {
                lines.push_back(trace->text);
            }
        }
        for (WriteRecord& write : wanted.writes) {
            unanswered.push_back(write.number);
            records.push_back(std::move(write.record));
        }
        timer = wanted.timer ? wanted.timer : timer;
        wanted = HostEffects();
    }
};

}  // namespace

TEST_CASE("a start waits for its record; acknowledgements and what is before do not") {
    Fixture all;
    all.receive(0, join_of("a"));
    CHECK(all.sent<Accepted>() == 1);
    CHECK(all.sent<Start>() == 0);
    REQUIRE(all.unanswered.size() == 1);
    CHECK(all.records.front().generation == Generation(1));
    all.receive(1, Beat{1});
    CHECK(all.sent<Acknowledge>() == 1);
    CHECK(all.sent<Start>() == 0);
    CHECK(all.host->is_waiting());
    all.answer(2);
    CHECK(all.sent<Start>() == 1);
    CHECK_FALSE(all.host->is_waiting());
    CHECK(all.host->fault().empty());
}

TEST_CASE("where nothing is kept nothing waits") {
    Fixture all(Keeping::Nowhere);
    all.receive(0, join_of("a"));
    CHECK(all.sent<Start>() == 1);
    CHECK(all.records.empty());
}

TEST_CASE("a record that fails holds nothing up, is told once, and is tried until it is taken") {
    Fixture all;
    all.receive(0, join_of("a"));
    all.answer_badly(5);
    CHECK(all.sent<Start>() == 1);
    CHECK(all.has_said("is not durable: no space left"));
    CHECK(all.has_noticed("no longer durable: no space left"));
    CHECK(all.host->fault() == "no space left");
    all.receive(800, Beat{1});
    all.run_until(1004);
    CHECK(all.unanswered.empty());
    all.run_until(1005);
    REQUIRE(all.unanswered.size() == 1);
    all.answer_badly(1010);
    all.receive(1600, Beat{2});
    all.run_until(2010);
    CHECK(all.sent<Notice>() == 1);
    REQUIRE(all.unanswered.size() == 1);
    all.answer(2011);
    CHECK(all.has_noticed("works again"));
    CHECK(all.host->fault().empty());
}

TEST_CASE("a record that fails for another reason is told again, once in a while") {
    Fixture all;
    all.receive(0, join_of("a"));
    const auto live = [&all](int from, int until) {
        for (int now = from; now <= until; now += 100) {
            all.receive(now, Beat{1});
            all.run_until(now);
        }
    };
    all.answer(5, "the disk does not answer");
    CHECK(all.has_noticed("no longer durable: the disk does not answer"));
    live(100, 1100);
    all.answer(1100, "no space left");
    CHECK(all.has_noticed("no longer durable: no space left"));
    CHECK(all.run().not_durable == "no space left");
    all.receive(1101, WorkerFinished{.generation = Generation(1), .local_rank = LocalRank(0)});
    REQUIRE(!all.unanswered.empty());
    all.answer(1102, "another");
    CHECK_FALSE(all.has_noticed("another"));
    live(1200, 2300);
    REQUIRE(!all.unanswered.empty());
    all.answer(2300, "yet another");
    CHECK(all.has_noticed("yet another"));
}

TEST_CASE("a fault that only counts otherwise is told once, and nobody's silence is doubted anew") {
    Fixture all(Keeping::Strictly);
    all.receive(0, join_of("a"));
    for (int ms = 5; ms <= 20000; ms += 5) {
        all.run_until(ms);
        while (!all.unanswered.empty()) {
            all.answer(ms, "it has " + std::to_string(ms) + " bytes");
        }
        if (ms % 200 == 0) {
            all.receive(ms, Beat{1});
        }
    }
    const auto told =
        std::count_if(all.messages.begin(), all.messages.end(), [](const RendezvousMessage& one) {
            const Notice* notice = std::get_if<Notice>(&one);
            return notice != nullptr && notice->text.find("no longer durable") != std::string::npos;
        });
    CHECK(told == 1);
    CHECK_FALSE(all.run().doubt.until);
}

TEST_CASE("a journal that hangs is given up after its timeout, and counts again when it answers") {
    Fixture all;
    all.receive(0, join_of("a"));
    for (int ms = 200; ms < 1000; ms += 200) {
        all.receive(ms, Beat{1});
        all.run_until(ms);
    }
    CHECK(all.sent<Start>() == 0);
    all.run_until(1000);
    CHECK(all.sent<Start>() == 1);
    CHECK(all.host->fault() == "the journal has not answered for 1000 ms");
    // A node that joined meanwhile was not answered, and does not beat before the answer.
    CHECK(all.run().doubt.until);
    all.answer(1100);
    CHECK(all.host->fault().empty());
}

TEST_CASE("one of several daemons tells nothing that was not taken for longer than a lease") {
    Fixture all(Keeping::Strictly);
    all.receive(0, join_of("a"));
    all.answer_badly(5);
    CHECK(all.sent<Start>() == 0);
    int ms = 5;
    for (int pause = 20; ms + pause < all.limits.leader_lease.count(); pause *= 2) {
        all.run_until(ms + pause - 1);
        REQUIRE(all.unanswered.empty());
        ms += pause;
        all.run_until(ms);
        REQUIRE(all.unanswered.size() == 1);
        all.answer_badly(ms);
    }
    CHECK(all.sent<Start>() == 0);
    all.run_until(2600);
    all.answer(2600);
    CHECK(all.sent<Start>() == 1);
    CHECK(all.host->fault().empty());
}

// Etcd has no room, or the record is too large for it: the lease goes on all the same.
TEST_CASE("a leader goes on without a record that etcd does not take within its patience") {
    Fixture all(Keeping::Strictly);
    const int patience = static_cast<int>(all.limits.etcd_record_patience.count());
    REQUIRE(all.limits.etcd_record_patience > all.limits.leader_lease);
    all.receive(0, join_of("a"));
    int ms = 5;
    for (; ms < patience; ms += 5) {
        all.run_until(ms);
        while (!all.unanswered.empty()) {
            all.answer_badly(ms);
        }
        if (ms % 200 == 0) {
            all.receive(ms, Beat{1});
        }
    }
    CHECK(all.sent<Start>() == 0);
    CHECK(all.host->is_waiting());
    CHECK(all.run().not_durable == "no space left");
    CHECK(all.records.size() < 15);  // a large record is not tried in a hot loop
    all.run_until(patience);
    CHECK(all.sent<Start>() == 1);
    CHECK_FALSE(all.host->is_waiting());
    CHECK(all.has_noticed("no longer durable: no space left"));
    CHECK(all.has_said("etcd has not taken this run's record for 3000 ms: the run goes on"));
    // A node that joined meanwhile was not answered, and does not beat before the answer.
    CHECK(all.run().doubt.until);

    SECTION("what comes next waits for no record") {
        WorkerFinished finished;
        finished.generation = Generation(1);
        all.receive(ms + 1, finished);
        all.receive(ms + 2, Goodbye{});
        CHECK(std::holds_alternative<Closed>(all.run().phase));
        CHECK_FALSE(all.host->is_waiting());
    }
    SECTION("it is tried until it is taken, and from then on records count again") {
        const std::size_t before = all.records.size();
        all.receive(ms + 800, Beat{2});
        all.run_until(ms + 1100);
        REQUIRE(all.records.size() > before);
        all.answer(ms + 1101);
        CHECK(all.has_noticed("works again"));
        CHECK(all.host->fault().empty());
        WorkerFailed failed;
        failed.generation = Generation(1);
        all.receive(ms + 1110, failed);
        all.receive(ms + 1111, Goodbye{});
        CHECK(all.sent<Verdict>() == 0);
        CHECK(all.host->is_waiting());
    }
    SECTION("another daemon may decide by now: nothing goes out") {
        all.decides_until = at(ms + 1);
        all.messages.clear();
        all.receive(ms + 1, Beat{3});
        CHECK(all.messages.empty());
    }
}

TEST_CASE("a leader whose etcd does not answer a write goes on after the same patience") {
    Fixture all(Keeping::Strictly);
    all.receive(0, join_of("a"));
    for (int ms = 200; ms < 3000; ms += 200) {
        all.receive(ms, Beat{1});
        all.run_until(ms);
    }
    CHECK(all.sent<Start>() == 0);
    all.run_until(3000);
    CHECK(all.sent<Start>() == 1);
    CHECK_FALSE(all.host->fault().empty());
    all.answer(3100);
    CHECK(all.host->fault().empty());
}

// Its joins are not answered before the record of the last one is given up.
TEST_CASE("nobody is silent in a run that begins while its leader waits for a record") {
    Fixture all(Keeping::Strictly);
    all.receive(0, join_of("a"));
    all.answer(1);
    WorkerFinished finished;
    finished.generation = Generation(1);
    all.receive(10, finished);
    all.receive(11, Goodbye{});
    const std::string token = all.run().token;
    REQUIRE(std::holds_alternative<Closed>(all.run().phase));
    all.answer_badly(12);
    REQUIRE(all.host->is_waiting());
    all.receive(20, join_of("a", "p2"), ConnectionId(2));
    REQUIRE(all.run().token != token);
    for (int ms = 25; ms < 3010; ms += 5) {
        while (!all.unanswered.empty()) {
            all.answer_badly(ms);
        }
        all.run_until(ms);
    }
    CHECK(all.host->is_waiting());
    CHECK_FALSE(all.has_said("was silent"));
    CHECK_FALSE(all.run().nodes.empty());
    all.run_until(3010);
    CHECK(all.sent<Start>() == 2);
}

// A disk that was full when the first run began, and still is when the second does.
TEST_CASE("a run that begins while records are known to fail is told that it is not durable") {
    Fixture all;
    all.receive(0, join_of("a"));
    all.answer_badly(5);
    REQUIRE(all.has_noticed("no longer durable"));
    const std::string token = all.run().token;
    WorkerFinished finished;
    finished.generation = Generation(1);
    all.receive(10, finished);
    all.receive(11, Goodbye{});
    while (!all.unanswered.empty()) {
        all.answer_badly(12);
    }
    REQUIRE(std::holds_alternative<Closed>(all.run().phase));
    all.messages.clear();
    Join next = join_of("a", "p2");
    all.receive(20, next, ConnectionId(2));
    REQUIRE(all.run().token != token);
    CHECK(all.run().not_durable == "no space left");
    CHECK(all.has_noticed("no longer durable: no space left"));
}

TEST_CASE("a deadline that moved away costs one wake-up, and the timer is set anew") {
    Fixture all;
    all.receive(0, join_of("a"));
    all.answer(1);
    const std::optional<Instant> first = all.timer;
    REQUIRE(first);
    all.receive(200, Beat{1});
    CHECK(all.timer == first);  // left alone
    all.run_until(1000);
    REQUIRE(all.timer);
    CHECK(*all.timer > *first);
    CHECK_FALSE(all.run().nodes.empty());
    all.run_until(5000);
    CHECK(all.run().nodes.empty());  // silent for a lease
}

TEST_CASE("a timer that is long due tells that this process was held up") {
    Fixture all;
    all.receive(0, join_of("a"));
    all.answer(1);
    REQUIRE(all.timer);
    const int due =
        static_cast<int>(std::chrono::duration_cast<Milliseconds>(*all.timer - at(0)).count());
    SECTION("by what was received meanwhile") {
        all.receive(due + 600, Beat{1});
    }
    SECTION("by the timer itself") {
        all.fire(at(due + 600));
    }
    CHECK(all.has_said("this process was held up for 600 ms"));
    CHECK(all.run().doubt.until);
    const std::size_t lines = all.lines.size();
    all.receive(due + 601, Beat{2});
    CHECK(all.lines.size() == lines);  // told once
}

TEST_CASE("a timer that is a little late is no hold-up") {
    Fixture all;
    all.receive(0, join_of("a"));
    all.answer(1);
    REQUIRE(all.timer);
    all.fire(*all.timer + Milliseconds(400));
    CHECK_FALSE(all.has_said("held up"));
}

TEST_CASE("whoever was once not to decide decides nothing any more") {
    Fixture all(Keeping::Strictly);
    all.receive(0, join_of("a"));
    REQUIRE(all.sent<Accepted>() == 1);
    all.decides_until = at(100);
    SECTION("what arrived was not taken in") {
        all.receive(100, Beat{1});
    }
    SECTION("the timer fired") {
        all.fire(at(1000));
    }
    SECTION("a record was written") {
        all.answer(150);
    }
    // A renewal that came late.
    all.decides_until = Instant::max();
    all.receive(200, Beat{2});
    if (!all.unanswered.empty()) {
        all.answer(201);
    }
    CHECK(all.sent<Acknowledge>() == 0);
    CHECK(all.sent<Start>() == 0);
}

}  // namespace ddprun::rdzv
