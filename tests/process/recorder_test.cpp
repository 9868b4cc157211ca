// Goal: effects go in order, and those after an awaited record only when it is durable; a journal
// that fails or hangs is said and holds nothing up, except for one of several daemons. Method: a
// Recorder with a journal that answers when the test says so.

#include "rendezvous/server/recorder.hpp"

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "tests/support/catch.hpp"

namespace ddprun::rdzv {
namespace {

/// Keeps what it is given; the test answers.
class FakeJournal final : public Journal {
public:
    void write(const JobId& job, std::string record, Written written) override {
        REQUIRE(job == JobId("test"));
        records.push_back(std::move(record));
        answers_.push_back(std::move(written));
    }
    void erase(const JobId& /*job*/) override {}

    /// Answers the oldest write that has no answer yet.
    void answer(const Result<void>& result) {
        REQUIRE(next_ < answers_.size());
        const Written written = answers_[next_++];
        written(result);
    }
    void answer_well() { answer({}); }
    void answer_badly() { answer(Error{ErrorCode::System, "no space left"}); }

    [[nodiscard]] std::size_t unanswered() const { return answers_.size() - next_; }

    std::vector<std::string> records;

private:
    std::vector<Written> answers_;
    std::size_t next_ = 0;
};

Effect tell(int number) {
    return Trace{std::to_string(number)};
}

Effect acknowledge() {
    return Send{ConnectionId(1), Acknowledge{.sequence = 7}};
}

/// Nothing of it needs a record.
Effects plain(std::vector<Effect> now) {
    return {.now = std::move(now), .after_record = {}};
}

Effects written_behind(std::vector<Effect> now = {}) {
    return {.now = std::move(now), .record = RecordWrite::Behind, .after_record = {}};
}

Effects awaited(std::vector<Effect> after_record) {
    return {.now = {}, .record = RecordWrite::Awaited, .after_record = std::move(after_record)};
}

class Fixture {
public:
    explicit Fixture(bool is_strict = false) {
        limits.journal_timeout = Milliseconds(20);
        limits.reconnect_backoff_min = Milliseconds(1);
        limits.reconnect_backoff_max = Milliseconds(5);
        RecorderHooks hooks;
        hooks.carry_out = [this](const Effect& effect) {
            const Trace* trace = std::get_if<Trace>(&effect);
            done += trace != nullptr ? trace->text : "a";
            if (on_effect) {
                on_effect();
            }
        };
        hooks.record = [this] { return state; };
        hooks.durability = [this](const std::string& fault) {
            faults.push_back(fault);
            if (on_fault) {
                on_fault();
            }
        };
        recorder = std::make_shared<Recorder>(
            io, JobId("test"), limits, Durable{.journal = &journal, .is_strict = is_strict}, hooks);
    }
    ~Fixture() { recorder->stop(); }
    Fixture(const Fixture&) = delete;
    Fixture& operator=(const Fixture&) = delete;

    /// Lets time pass until `is_done`.
    void run_until(const std::function<bool()>& is_done) {
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
        while (!is_done()) {
            REQUIRE(std::chrono::steady_clock::now() < deadline);
            io.restart();
            io.run_one_for(std::chrono::milliseconds(20));
        }
    }

    boost::asio::io_context io;
    Limits limits;
    FakeJournal journal;
    std::string state = "s0";
    std::string done;  ///< what was carried out, a character each
    std::vector<std::string> faults;
    std::function<void()> on_effect;
    std::function<void()> on_fault;
    std::shared_ptr<Recorder> recorder;
};

}  // namespace

TEST_CASE("what follows an awaited record waits; acknowledgements and what is before do not") {
    Fixture all;
    Effects first = awaited({tell(2), acknowledge(), tell(3)});
    first.now = {tell(1)};
    all.recorder->take(first);
    CHECK(all.done == "a1");
    all.recorder->take(plain({tell(4), acknowledge()}));
    CHECK(all.done == "a1a");
    all.journal.answer_well();
    CHECK(all.done == "a1a234");
    all.recorder->take(plain({tell(5)}));
    CHECK(all.done == "a1a2345");
    CHECK(all.journal.records.size() == 1);
    CHECK(all.faults.empty());
}

TEST_CASE("a record that nobody waits for holds nothing up") {
    Fixture all;
    all.recorder->take(written_behind({tell(1)}));
    CHECK(all.done == "1");
    CHECK(all.journal.unanswered() == 1);
}

TEST_CASE("while a record is under way changes are gathered, and the newest state follows") {
    Fixture all;
    all.recorder->take(written_behind());
    for (const char* state : {"s1", "s2", "s3"}) {
        all.state = state;
        all.recorder->take(written_behind());
    }
    CHECK(all.journal.records == std::vector<std::string>{"s0"});
    all.journal.answer_well();
    CHECK(all.journal.records == std::vector<std::string>{"s0", "s3"});
    all.journal.answer_well();
    CHECK(all.journal.records.size() == 2);
}

TEST_CASE("an awaited record is written at once, and what follows each waits for that one") {
    Fixture all;
    all.recorder->take(written_behind());
    all.state = "s1";
    all.recorder->take(awaited({tell(1)}));
    all.state = "s2";
    all.recorder->take(awaited({tell(2)}));
    CHECK(all.journal.records == std::vector<std::string>{"s0", "s1", "s2"});
    all.journal.answer_well();
    CHECK(all.done.empty());
    all.journal.answer_well();
    CHECK(all.done == "1");
    all.journal.answer_well();
    CHECK(all.done == "12");
}

TEST_CASE("without a journal, and with nothing to record, nothing waits") {
    boost::asio::io_context io;
    std::size_t count = 0;
    RecorderHooks hooks;
    hooks.carry_out = [&](const Effect& /*effect*/) { ++count; };
    std::make_shared<Recorder>(io, JobId("test"), Limits(), Durable(), hooks)
        ->take(awaited({tell(1), tell(2)}));
    CHECK(count == 2);
    Fixture all;
    all.state.clear();
    all.recorder->take(awaited({tell(1)}));
    CHECK(all.done == "1");
    CHECK(all.journal.records.empty());
}

TEST_CASE("a failure is told once and holds nothing up; the record is tried until it is taken") {
    Fixture all;
    all.recorder->take(awaited({tell(1)}));
    all.journal.answer_badly();
    CHECK(all.done == "1");
    CHECK(all.faults == std::vector<std::string>{"no space left"});
    // Known to fail: the next one is not waited for.
    all.recorder->take(awaited({tell(2)}));
    CHECK(all.done == "12");
    all.journal.answer_badly();
    all.state = "s1";
    all.run_until([&] { return all.journal.unanswered() == 1; });
    all.journal.answer_badly();
    all.run_until([&] { return all.journal.unanswered() == 1; });
    CHECK(all.faults.size() == 1);
    CHECK(all.journal.records.back() == "s1");
    all.journal.answer_well();
    CHECK(all.faults == std::vector<std::string>{"no space left", ""});
    // Then it is waited for again, and nothing is tried any more.
    all.recorder->take(awaited({tell(3)}));
    CHECK(all.done == "12");
    CHECK(all.journal.unanswered() == 1);
    all.journal.answer_well();
    CHECK(all.done == "123");
}

TEST_CASE("a journal that hangs is given up after its timeout, and counts again when it answers") {
    Fixture all;
    all.recorder->take(awaited({tell(1)}));
    all.run_until([&] { return !all.faults.empty(); });
    CHECK(all.done == "1");
    CHECK(all.faults.at(0) == "the journal has not answered for 20 ms");
    all.recorder->take(awaited({tell(2), tell(3)}));
    CHECK(all.done == "123");
    all.journal.answer_well();
    CHECK(all.faults == std::vector<std::string>{"the journal has not answered for 20 ms", ""});
}

TEST_CASE("one timeout holds for all that wait, however many more come") {
    Fixture all;
    all.recorder->take(awaited({tell(0)}));
    // Each of them comes before the patience with the one before is over.
    all.run_until([&] {
        if (all.faults.empty()) {
            all.recorder->take(awaited({tell(1)}));
        }
        return !all.faults.empty();
    });
    CHECK(all.done.front() == '0');
    CHECK(all.done.size() == all.journal.records.size());
}

TEST_CASE("a journal that answers, if late, is waited for anew") {
    Fixture all;
    all.recorder->take(awaited({tell(1)}));
    all.recorder->take(awaited({tell(2)}));
    all.journal.answer_well();
    CHECK(all.done == "1");
    all.run_until([&] { return !all.faults.empty(); });
    CHECK(all.done == "12");
}

TEST_CASE("a notice that a fault causes comes behind what waited") {
    Fixture all;
    all.on_fault = [&] { all.recorder->take(plain({tell(9)})); };
    all.recorder->take(awaited({tell(1), tell(2)}));
    all.journal.answer_badly();
    CHECK(all.done == "129");
}

TEST_CASE("effects that cause effects stay in order") {
    Fixture all;
    all.on_effect = [&] {
        if (all.done == "1") {
            all.recorder->take(plain({tell(8)}));
        }
    };
    all.recorder->take(awaited({tell(1), tell(2)}));
    all.journal.answer_well();
    CHECK(all.done == "128");
}

TEST_CASE("one of several daemons tells nothing that was not taken, however long that takes") {
    Fixture all(true);
    all.recorder->take(awaited({tell(1)}));
    all.journal.answer_badly();
    all.state = "s1";
    for (int i = 0; i < 3; ++i) {
        all.run_until([&] { return all.journal.unanswered() == 1; });
        CHECK(all.done.empty());
        all.journal.answer_badly();
    }
    CHECK(all.faults == std::vector<std::string>{"no space left"});
    all.recorder->take(plain({tell(2), acknowledge()}));
    CHECK(all.done == "a");
    all.run_until([&] { return all.journal.unanswered() == 1; });
    CHECK(all.journal.records.back() == "s1");
    all.journal.answer_well();
    CHECK(all.done == "a12");
    CHECK(all.faults.back().empty());
}

TEST_CASE("after its end nothing that waits is carried out and nobody is called") {
    const bool is_strict = GENERATE(false, true);
    Fixture all(is_strict);
    all.recorder->take(awaited({tell(1)}));
    all.recorder->take(awaited({tell(2)}));
    all.journal.answer_badly();
    const std::string done = all.done;
    all.recorder->stop();
    all.journal.answer_well();
    all.io.run();  // no timer is left
    CHECK(all.done == done);
    CHECK(all.faults.size() == 1);
    CHECK(all.journal.unanswered() == 0);
}

TEST_CASE("it may be ended by what it calls") {
    Fixture all;
    all.on_fault = [&] { all.recorder->stop(); };
    all.recorder->take(awaited({tell(1), tell(2)}));
    all.journal.answer_badly();
    all.io.run();
    CHECK(all.done.empty());
    Fixture other;
    other.on_effect = [&] { other.recorder->stop(); };
    other.recorder->take(awaited({tell(1), tell(2)}));
    other.journal.answer_well();
    other.io.run();
    CHECK(other.done == "1");
}

}  // namespace ddprun::rdzv
