// Several daemons' halves in one process compete for leadership in real etcds. Each candidate has
// its own loop, so that one can be stopped in the middle of everything, as SIGSTOP would, while the
// others go on.

#include <algorithm>
#include <chrono>
#include <initializer_list>
#include <memory>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <fmt/format.h>

#include "rendezvous/election/leadership.hpp"
#include "rendezvous/journal/etcd_journal.hpp"
#include "tests/process/journal_etcds.hpp"
#include "tests/process/journal_fixture.hpp"

using namespace ddprun;
using namespace ddprun::rdzv;
using namespace ddprun::rdzv::test;

namespace {

using Records = std::map<JobId, std::string>;
const JobId kLlama("llama");

Instant now() {
    return std::chrono::steady_clock::now();
}

class Candidate {
public:
    Candidate(const Etcds& etcds, const std::string& advertised,
              const std::string& cluster = "test", const Limits& limits = {}) {
        LeadershipOptions options;
        options.etcds = etcds.endpoints();
        options.cluster = cluster;
        options.advertised = advertised;
        options.limits = limits;
        leadership_ = std::make_unique<Leadership>(*io_, std::move(options));
        LeadershipEvents events;
        events.leads = [this](std::uint64_t term, Records records) {
            CHECK(is_leading());
            terms_.push_back(term);
            records_ = std::move(records);
            state_ = "leads";
        };
        events.follows = [this](const std::string& leader) { state_ = "follows " + leader; };
        events.lost = [this](const std::string& why) {
            CHECK_FALSE(is_leading());
            state_ = "lost";
            ++losses_;
            why_ = why;
        };
        events.say = [this](const std::string& line) { said_.push_back(line); };
        leadership_->start(std::move(events));
    }

    // Lets the loop work for a moment.
    void turn() {
        io_->restart();
        io_->run_one_for(std::chrono::milliseconds(2));
        io_->poll();
    }
    // Without a word to etcd, as if it was killed.
    void disappear() {
        leadership_.reset();
        io_.reset();
    }
    void stop() {
        bool is_done = false;
        leadership_->stop([&] { is_done = true; });
        CHECK(run_until(*io_, [&] { return is_done; }));
    }
    void begin_write(const std::string& record, Journal::Written written) {
        leadership_->journal().write(kLlama, record, std::move(written));
    }
    [[nodiscard]] Result<void> write(const std::string& record, const JobId& job = kLlama) {
        return write_now(*io_, leadership_->journal(), job, record);
    }
    void erase() { leadership_->journal().erase(kLlama); }

    [[nodiscard]] bool is_leading() const { return leadership_->is_leading(now()); }
    [[nodiscard]] Instant leads_until() const { return leadership_->leads_until(); }
    [[nodiscard]] const std::string& state() const { return state_; }
    [[nodiscard]] const std::string& why() const { return why_; }
    [[nodiscard]] int losses() const { return losses_; }
    [[nodiscard]] const Records& records() const { return records_; }
    [[nodiscard]] const std::vector<std::uint64_t>& terms() const { return terms_; }
    [[nodiscard]] const std::vector<std::string>& said() const { return said_; }

private:
    std::unique_ptr<boost::asio::io_context> io_ = std::make_unique<boost::asio::io_context>();
    std::unique_ptr<Leadership> leadership_;
    std::string state_;
    std::string why_;
    int losses_ = 0;
    Records records_;
    std::vector<std::uint64_t> terms_;
    std::vector<std::string> said_;
};

// Lets all of them work until `is_done`. At no moment two lead.
bool run_all(std::initializer_list<Candidate*> candidates, const std::function<bool()>& is_done) {
    const Instant deadline = now() + std::chrono::seconds(60);
    while (!is_done() && now() < deadline) {
        for (Candidate* const candidate : candidates) {
            candidate->turn();
        }
        const auto leaders =
            std::count_if(candidates.begin(), candidates.end(),
                          [](const Candidate* candidate) { return candidate->is_leading(); });
        if (leaders > 1) {
            FAIL("two lead at once");
        }
    }
    return is_done();
}

}  // namespace

TEST_CASE("a single candidate leads, writes, and finds what it wrote in its next life") {
    if (!has_etcd()) {
        return;
    }
    const Etcds etcds(1);
    {
        Candidate first(etcds, "10.0.0.1:29400");
        CHECK_FALSE(first.is_leading());
        CHECK_FALSE(first.write("before it leads"));
        REQUIRE(run_all({&first}, [&] { return first.state() == "leads"; }));
        CHECK(first.records().empty());
        CHECK(first.write("one"));
        CHECK(first.write(std::string("t\0wo", 4)));
        first.stop();
    }
    // With a lease and requests so long that an etcd that is slow, not away, keeps up.
    Limits limits;
    limits.leader_lease = std::chrono::seconds(9);
    limits.etcd_timeout = std::chrono::seconds(6);
    Candidate second(etcds, "10.0.0.1:29400", "test", limits);
    REQUIRE(run_all({&second}, [&] { return second.state() == "leads"; }));
    CHECK(second.records() == Records{{kLlama, std::string("t\0wo", 4)}});
    // It leads for longer than one lease.
    const Instant first_end = second.leads_until();
    CHECK(run_all({&second}, [&] { return now() > first_end; }));
    CHECK(second.is_leading());
    CHECK(second.losses() == 0);
    CHECK(second.said().empty());
    second.erase();
    CHECK(second.write("three"));
    second.erase();
    REQUIRE(run_all({&second}, [&] {
        return etcds.control({"get", "--prefix", "/ddprun/test/run/"}).empty();
    }));
}

TEST_CASE("of several candidates one leads and the others say who") {
    if (!has_etcd()) {
        return;
    }
    const Etcds etcds(1);
    Candidate one(etcds, "10.0.0.1:29400");
    Candidate two(etcds, "10.0.0.2:29400");
    Candidate three(etcds, "10.0.0.3:29400");
    Candidate elsewhere(etcds, "10.0.0.1:29400", "another cluster");
    const std::vector<Candidate*> all{&one, &two, &three};
    const auto count = [&](const std::string& state) {
        return std::count_if(all.begin(), all.end(), [&](const Candidate* candidate) {
            return candidate->state() == state;
        });
    };
    const auto is_settled = [&] {
        return count("leads") == 1 &&
               (count("follows 10.0.0.1:29400") == 2 || count("follows 10.0.0.2:29400") == 2 ||
                count("follows 10.0.0.3:29400") == 2);
    };
    CHECK(run_all({&one, &two, &three}, is_settled));
    CHECK(run_all({&elsewhere}, [&] { return elsewhere.state() == "leads"; }));
}

TEST_CASE("a follower takes over from a leader that is killed, with all that it wrote") {
    if (!has_etcd()) {
        return;
    }
    const Etcds etcds(1);
    Candidate first(etcds, "10.0.0.1:29400");
    REQUIRE(run_all({&first}, [&] { return first.state() == "leads"; }));
    Candidate second(etcds, "10.0.0.2:29400");
    REQUIRE(run_all({&first, &second}, [&] { return second.state() == "follows 10.0.0.1:29400"; }));
    Records written;
    // Several pages of them.
    for (int number = 0; number < 50; ++number) {
        const JobId job(fmt::format("job {}", number % 40));
        const std::string record(static_cast<std::size_t>(1000 * number), 'r');
        REQUIRE(first.write(record, job));
        written[job] = record;
    }
    first.disappear();
    REQUIRE(run_all({&second}, [&] { return second.state() == "leads"; }));
    CHECK(second.records() == written);
    CHECK(second.terms().back() > first.terms().back());
    CHECK(second.write("mine now"));
}

TEST_CASE("a leader that stops makes room at once, and a follower is told by etcd") {
    if (!has_etcd()) {
        return;
    }
    const Etcds etcds(1);
    Limits limits;
    // The end of a lease, or a question now and then, would come too late here.
    limits.leader_lease = std::chrono::minutes(10);
    Candidate first(etcds, "10.0.0.1:29400", "test", limits);
    REQUIRE(run_all({&first}, [&] { return first.state() == "leads"; }));
    Candidate second(etcds, "10.0.0.2:29400", "test", limits);
    REQUIRE(run_all({&first, &second}, [&] { return second.state() == "follows 10.0.0.1:29400"; }));
    first.stop();
    CHECK_FALSE(first.is_leading());
    CHECK(run_all({&second}, [&] { return second.state() == "leads"; }));
}

TEST_CASE("a leader leads again, in the same term, when etcd comes back after its lease") {
    if (!has_etcd()) {
        return;
    }
    Etcds etcds(1);
    Candidate leader(etcds, "10.0.0.1:29400");
    REQUIRE(run_all({&leader}, [&] { return leader.state() == "leads"; }));
    REQUIRE(leader.write("before"));
    etcds.kill(0);
    CHECK_FALSE(leader.write("while there is no etcd"));
    REQUIRE(run_all({&leader}, [&] { return leader.state() == "lost"; }));
    CHECK_THAT(leader.why(), Catch::Contains("etcd at " + to_string(etcds.endpoints()[0])));
    REQUIRE_FALSE(leader.said().empty());
    CHECK_THAT(leader.said().back(), Catch::Contains("trying again"));
    // It gives every lease its full time when it starts.
    etcds.restart(0);
    REQUIRE(run_all({&leader}, [&] { return leader.state() == "leads"; }));
    CHECK(leader.terms().size() == 2);
    CHECK(leader.terms().front() == leader.terms().back());
    CHECK(leader.records() == Records{{kLlama, "before"}});
    CHECK(leader.said().back() == "etcd answers again");
    CHECK(leader.write("after"));
}

TEST_CASE("a daemon that is started again within its own lease sends nobody to itself") {
    if (!has_etcd()) {
        return;
    }
    const Etcds etcds(1);
    Candidate first(etcds, "10.0.0.1:29400");
    REQUIRE(run_all({&first}, [&] { return first.state() == "leads"; }));
    first.disappear();
    Candidate again(etcds, "10.0.0.1:29400");
    REQUIRE(run_all({&again}, [&] { return !again.state().empty(); }));
    CHECK(again.state() == "follows ");
    CHECK(run_all({&again}, [&] { return again.state() == "leads"; }));
}

TEST_CASE("a leader that is paused beyond its lease does not lead when it goes on") {
    if (!has_etcd()) {
        return;
    }
    const Etcds etcds(1);
    Candidate first(etcds, "10.0.0.1:29400");
    REQUIRE(run_all({&first}, [&] { return first.state() == "leads"; }));
    REQUIRE(first.write("before the pause"));
    Candidate second(etcds, "10.0.0.2:29400");
    std::optional<Result<void>> late;
    // It was about to write when it was stopped.
    first.begin_write("late", [&](const Result<void>& done) { late = done; });
    REQUIRE(run_all({&second}, [&] { return second.state() == "leads"; }));
    CHECK_FALSE(first.is_leading());
    CHECK(first.leads_until() < now());
    CHECK(first.state() == "leads");  // it does not know
    REQUIRE(second.write("after the pause"));
    // It goes on: what it was about to do does not happen.
    REQUIRE(run_all({&first, &second},
                    [&] { return late.has_value() && first.state() == "follows 10.0.0.2:29400"; }));
    CHECK_FALSE(*late);
    CHECK(first.losses() == 1);
    CHECK_FALSE(first.write("much later"));
    CHECK(etcds.control({"get", "--print-value-only", "/ddprun/test/run/llama"}) ==
          "after the pause\n");
    second.stop();
    REQUIRE(run_all({&first}, [&] { return first.state() == "leads"; }));
    CHECK(first.records() == Records{{kLlama, "after the pause"}});
}

TEST_CASE("etcd itself refuses the write of a daemon that wrongly believes that it leads") {
    if (!has_etcd()) {
        return;
    }
    const Etcds etcds(1);
    Candidate first(etcds, "10.0.0.1:29400");
    REQUIRE(run_all({&first}, [&] { return first.state() == "leads"; }));
    REQUIRE(first.write("before"));
    // By its own clock its lease goes on; another client took the key away.
    static_cast<void>(etcds.control({"del", "/ddprun/test/leader"}));
    static_cast<void>(etcds.control({"put", "/ddprun/test/leader", "10.0.0.2:29400"}));
    CHECK(first.is_leading());
    CHECK_FALSE(first.write("after"));
    CHECK_FALSE(first.is_leading());
    REQUIRE(run_all({&first}, [&] { return first.state() == "follows 10.0.0.2:29400"; }));
    CHECK(first.losses() == 1);
    CHECK_THAT(first.why(), Catch::Contains("another daemon leads"));
    CHECK(etcds.control({"get", "--print-value-only", "/ddprun/test/run/llama"}) == "before\n");
}

TEST_CASE("a write finds out that an earlier one was carried out whose answer was lost") {
    if (!has_etcd()) {
        return;
    }
    const Etcds etcds(1);
    boost::asio::io_context io;
    EtcdJournal journal(io, etcds.endpoints(), etcd_keys("test"), Limits{});
    // An empty etcd's first change has revision 2.
    REQUIRE(etcds.control({"put", "/ddprun/test/leader", "10.0.0.1:29400"}) == "OK\n");
    EtcdTerm term;
    term.revision = 2;
    term.leads_until = [] { return Instant::max(); };
    bool is_deposed = false;
    term.is_deposed = [&] { is_deposed = true; };
    journal.begin_term(std::move(term));
    REQUIRE(write_now(io, journal, kLlama, "one"));
    REQUIRE(etcds.control({"put", "/ddprun/test/run/llama", "late"}) == "OK\n");
    CHECK(write_now(io, journal, kLlama, "two"));
    CHECK_FALSE(is_deposed);
    CHECK(etcds.control({"get", "--print-value-only", "/ddprun/test/run/llama"}) == "two\n");
    // A request from before "two", with the revision of then, does not replace it any more.
    EtcdClient client(io, etcds.endpoints(), Limits{});
    const EtcdGuard then{.leader_key = "/ddprun/test/leader", .term = 2, .mod_revision = 3};
    std::string answer;
    boost::asio::co_spawn(
        io,
        client.call(guarded_request(then, "/ddprun/test/run/llama", "very late"),
                    std::chrono::seconds(10), Instant::max()),
        [&](const std::exception_ptr&, const Result<std::string>& body) { answer = *body; });
    REQUIRE(run_until(io, [&] { return !answer.empty(); }));
    CHECK_FALSE(read_guarded(answer)->is_done);
}

TEST_CASE("a record beyond etcd's limit is refused with the number and the flag to raise") {
    if (!has_etcd()) {
        return;
    }
    const Etcds etcds(1);
    Candidate leader(etcds, "10.0.0.1:29400");
    REQUIRE(run_all({&leader}, [&] { return leader.state() == "leads"; }));
    for (const std::size_t bytes : {std::size_t{1700000}, std::size_t{4000000}}) {
        const Result<void> refused = leader.write(std::string(bytes, 'x'));
        REQUIRE_FALSE(refused);
        CHECK(refused.error().code == ErrorCode::LimitExceeded);
        CHECK_THAT(refused.error().what, Catch::Contains(fmt::format("has {} bytes", bytes)));
        CHECK_THAT(refused.error().what, Catch::Contains("--max-request-bytes"));
    }
    CHECK(leader.write(std::string(1500000, 'x')));
}

// Each change of a key is kept until it is compacted, and counts.
TEST_CASE("records do not fill etcd with their own history") {
    if (!has_etcd()) {
        return;
    }
    const Etcds etcds(1, {"--quota-backend-bytes", "2000000"});
    Candidate leader(etcds, "10.0.0.1:29400");
    REQUIRE(run_all({&leader}, [&] { return leader.state() == "leads"; }));
    Candidate follower(etcds, "10.0.0.2:29400");
    REQUIRE(run_all({&leader, &follower},
                    [&] { return follower.state() == "follows 10.0.0.1:29400"; }));
    const std::string record(20000, 'x');
    for (int number = 0; number < 500; ++number) {
        const Result<void> written = leader.write(record);
        INFO(number);
        REQUIRE((written ? std::string() : written.error().what).empty());
    }
    CHECK(etcds.control({"alarm", "list"}).empty());
    // A watcher has missed nothing.
    leader.stop();
    REQUIRE(run_all({&follower}, [&] { return follower.state() == "leads"; }));
    CHECK(follower.records() == Records{{kLlama, record}});
}

TEST_CASE("an etcd without room says what to do, and its leader leads on") {
    if (!has_etcd()) {
        return;
    }
    const Etcds etcds(1, {"--quota-backend-bytes", "2000000"});
    Candidate leader(etcds, "10.0.0.1:29400");
    REQUIRE(run_all({&leader}, [&] { return leader.state() == "leads"; }));
    etcds.fill([&leader] { leader.turn(); });
    const Result<void> refused = leader.write("no room");
    REQUIRE_FALSE(refused);
    CHECK_THAT(refused.error().what, Catch::Contains("the record of run llama"));
    CHECK_THAT(refused.error().what, Catch::Contains("--quota-backend-bytes"));
    CHECK_THAT(refused.error().what, Catch::Contains("etcdctl alarm disarm"));
    const Instant end = leader.leads_until();
    REQUIRE(run_all({&leader}, [&] { return now() > end; }));
    CHECK(leader.is_leading());
    CHECK(leader.losses() == 0);
    // Another candidate could not lead either: etcd grants no lease.
    Candidate second(etcds, "10.0.0.2:29400");
    leader.disappear();
    REQUIRE(run_all({&second}, [&] {
        return !second.said().empty() &&
               second.said().back().find("alarm disarm") != std::string::npos;
    }));
    CHECK_FALSE(second.is_leading());
    etcds.make_room();
    REQUIRE(run_all({&second}, [&] { return second.state() == "leads"; }));
    CHECK(second.write("room"));
}

TEST_CASE("the lead and its writes outlive one of three etcds") {
    if (!has_etcd()) {
        return;
    }
    Etcds etcds(3);
    Limits limits;
    // Etcd grants no less than 2 s all the same; but a watch that is silent is renewed sooner.
    limits.leader_lease = Milliseconds(500);
    Candidate leader(etcds, "10.0.0.1:29400");
    REQUIRE(run_all({&leader}, [&] { return leader.state() == "leads"; }));
    Candidate follower(etcds, "10.0.0.2:29400", "test", limits);
    REQUIRE(run_all({&leader, &follower},
                    [&] { return follower.state() == "follows 10.0.0.1:29400"; }));
    std::size_t victim = 0;
    bool is_paused = false;
    SECTION("a follower among them is killed") {
        victim = (etcds.leader() + 1) % 3;
    }
    SECTION("the next follower among them is killed") {
        victim = (etcds.leader() + 2) % 3;
    }
    SECTION("the leader among them is killed") {
        victim = etcds.leader();
    }
    SECTION("the one that is asked first hangs") {
        is_paused = true;
    }
    if (is_paused) {
        etcds.pause(victim);
    } else {
        etcds.kill(victim);
    }
    // Until a write is through; while etcd elects its leader none is, and the lease may be short.
    bool is_writing = false;
    bool is_written = false;
    REQUIRE(run_all({&leader, &follower}, [&] {
        if (!is_written && !is_writing && leader.is_leading()) {
            is_writing = true;
            leader.begin_write("with two of three", [&](const Result<void>& done) {
                is_writing = false;
                is_written = done.has_value();
            });
        }
        return is_written;
    }));
    CHECK(leader.is_leading());
    CHECK(follower.terms().empty());
    // The follower notices the end of the leader all the same.
    leader.stop();
    REQUIRE(run_all({&follower}, [&] { return follower.state() == "leads"; }));
    CHECK(follower.records() == Records{{kLlama, "with two of three"}});
}
