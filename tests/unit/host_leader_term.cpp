// Goal: which of several daemons decides, and until when, follows from what etcd answers and when
// it was asked. Method: a LeaderTerm whose questions the test answers, at times of its choice.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/host/leader_term.hpp"
#include "rendezvous/host/lobby.hpp"
#include "rendezvous/host/term_writes.hpp"
#include "tests/support/catch.hpp"

namespace ddprun::rdzv {
namespace {

constexpr const char* kHere = "10.0.0.1:29400";
constexpr const char* kThere = "10.0.0.2:29400";
constexpr std::int64_t kLease = 7;
constexpr std::uint64_t kTerm = 30;

Instant at(int ms) {
    return Instant(Milliseconds(100000 + ms));
}

LeaderKey ours() {
    return {.term = kTerm, .lease = kLease, .endpoint = kHere};
}
LeaderKey theirs() {
    return {.term = kTerm, .lease = 9, .endpoint = kThere};
}

class Fixture {
public:
    void start() {
        effects.clear();
        term.start(at(0), effects);
    }
    void step(int ms, const TermInput& input) {
        effects.clear();
        term.step(at(ms), input, effects);
    }
    /// Leads since 0 ms, with a lease of 2 s that was asked for then.
    void lead() {
        start();
        step(0, KeySeen{.key = std::nullopt, .revision = 20});
        step(0, LeaseGranted{.lease = kLease, .ttl = std::chrono::seconds(2)});
        step(0, KeySeen{.key = ours(), .revision = kTerm});
        step(0, RecordsRead{});
        REQUIRE(find<BeginLeading>() != nullptr);
    }

    /// Null: none of that kind.
    template <typename T>
    [[nodiscard]] const T* find() const {
        for (const TermEffect& effect : effects) {
            if (const T* found = std::get_if<T>(&effect)) {
                return found;
            }
        }
        return nullptr;
    }
    /// The last step asked etcd so.
    template <typename T>
    [[nodiscard]] bool asks() const {
        const AskEtcd* question = find<AskEtcd>();
        return question != nullptr && std::holds_alternative<T>(question->what);
    }

    Limits limits;
    LeaderTerm term{kHere, limits};
    TermEffects effects;
};

}  // namespace

TEST_CASE("nobody leads: it campaigns with a lease, and leads once all records are read") {
    Fixture all;
    all.start();
    CHECK(all.asks<LookAtKey>());
    CHECK_FALSE(all.term.timer());
    all.step(10, KeySeen{.key = std::nullopt, .revision = 20});
    REQUIRE(all.asks<GrantLease>());
    CHECK(std::get<GrantLease>(all.find<AskEtcd>()->what).ttl == std::chrono::seconds(2));
    all.step(20, LeaseGranted{.lease = kLease, .ttl = std::chrono::seconds(2)});
    CHECK(all.asks<TakeKey>());
    all.step(30, KeySeen{.key = ours(), .revision = kTerm});
    CHECK(all.find<ReadRecords>() != nullptr);
    CHECK_FALSE(all.term.is_leading(at(30)));
    // Counted from when the lease was asked for, and a tenth of it is not used.
    CHECK(all.term.leads_until() == at(10 + 1800));
    CHECK(all.term.timer() == at(10 + 500));
    all.step(40, RecordsRead{});
    REQUIRE(all.find<BeginLeading>() != nullptr);
    CHECK(all.find<BeginLeading>()->term == kTerm);
    CHECK(all.term.is_leading(at(1809)));
    CHECK_FALSE(all.term.is_leading(at(1810)));
}

TEST_CASE("a prolongation counts from the question") {
    Fixture all;
    all.lead();
    all.step(499, TermTimer{});
    CHECK(all.effects.empty());
    all.step(500, TermTimer{});
    REQUIRE(all.asks<ProlongLease>());
    CHECK(all.find<AskEtcd>()->until == at(1800));
    CHECK(all.term.timer() == at(1800));  // not asked twice at once
    all.step(900, LeaseProlonged{std::chrono::seconds(2)});
    CHECK(all.term.leads_until() == at(500 + 1800));
    CHECK(all.term.timer() == at(1000));
    // No answer: again after the back-off, and as long as the lease is believed.
    all.step(1000, TermTimer{});
    all.step(1500, EtcdFailed{.why = "etcd is silent"});
    REQUIRE(all.find<SayLine>() != nullptr);
    CHECK(all.find<SayLine>()->text == "etcd is silent; trying again");
    CHECK(all.term.timer() == at(1520));
    all.step(1520, TermTimer{});
    CHECK(all.asks<ProlongLease>());
    all.step(1530, LeaseProlonged{std::chrono::seconds(2)});
    CHECK(all.find<SayLine>()->text == "etcd answers again");
    CHECK(all.term.is_leading(at(1520 + 1799)));
}

// A process that was stopped finds the answer in its socket before its timers fire.
TEST_CASE("a lease that lapsed is a lost term even if a renewal comes late") {
    Fixture all;
    all.lead();
    all.step(500, TermTimer{});
    REQUIRE(all.asks<ProlongLease>());
    // By the question's time it would be believed until 2300.
    all.step(1900, LeaseProlonged{std::chrono::seconds(2)});
    REQUIRE(all.find<EndLeading>() != nullptr);
    CHECK(all.find<EndLeading>()->why == "etcd was not heard from for a whole lease");
    CHECK_FALSE(all.term.is_leading(at(1900)));
    CHECK(all.asks<LookAtKey>());
    // Etcd keeps the key for us all the same: the lease is prolonged, and everything read anew.
    all.step(1910, KeySeen{.key = ours(), .revision = 40});
    REQUIRE(all.asks<ProlongLease>());
    all.step(1920, LeaseProlonged{std::chrono::seconds(2)});
    CHECK(all.find<ReadRecords>() != nullptr);
    CHECK_FALSE(all.term.is_leading(at(1920)));
    all.step(1930, RecordsRead{});
    REQUIRE(all.find<BeginLeading>() != nullptr);
    CHECK(all.find<BeginLeading>()->term == kTerm);
    CHECK(all.term.leads_until() == at(1910 + 1800));
}

TEST_CASE("the end of a lease ends the term, and the next question waits for the last answer") {
    Fixture all;
    all.lead();
    SECTION("nothing was asked") {
        all.step(1800, TermTimer{});
        CHECK(all.find<EndLeading>() != nullptr);
        CHECK(all.asks<LookAtKey>());
    }
    SECTION("a prolongation is under way") {
        all.step(500, TermTimer{});
        all.step(1800, TermTimer{});
        CHECK(all.find<EndLeading>() != nullptr);
        CHECK(all.find<AskEtcd>() == nullptr);
        CHECK_FALSE(all.term.timer());
        all.step(1801, EtcdFailed{.why = "etcd is silent"});
        CHECK(all.asks<LookAtKey>());
    }
    SECTION("it tells why etcd was not heard from") {
        all.step(500, TermTimer{});
        all.step(1000, EtcdFailed{.why = "etcd is silent"});
        all.step(1800, TermTimer{});
        CHECK(all.find<EndLeading>()->why == "etcd is silent");
    }
    SECTION("etcd says so") {
        all.step(500, TermTimer{});
        all.step(510, LeaseProlonged{});
        CHECK(all.find<EndLeading>()->why == "etcd has ended the lease");
        CHECK(all.asks<LookAtKey>());
        CHECK_FALSE(all.term.lease());
    }
    SECTION("the journal was told so") {
        all.step(100, TermDeposed{});
        CHECK(all.find<EndLeading>()->why == "etcd says that another daemon leads, or none");
        CHECK(all.asks<LookAtKey>());
    }
    CHECK_FALSE(all.term.is_leading(at(0)));
    CHECK(all.term.leads_until() == Instant::min());
}

TEST_CASE("records that cannot be read are read again; what comes after the term is void") {
    Fixture all;
    all.start();
    all.step(0, KeySeen{.key = std::nullopt, .revision = 20});
    all.step(0, LeaseGranted{.lease = kLease, .ttl = std::chrono::seconds(2)});
    all.step(0, KeySeen{.key = ours(), .revision = kTerm});
    all.step(100, RecordsFailed{"too slow"});
    CHECK(all.term.timer() == at(500));
    all.step(500, TermTimer{});
    CHECK(all.asks<ProlongLease>());
    all.step(600, TermTimer{});
    CHECK(all.find<ReadRecords>() != nullptr);
    all.step(1800, TermTimer{});
    CHECK(all.find<StopReading>() != nullptr);
    CHECK(all.find<EndLeading>() == nullptr);  // it never led
    all.step(1801, RecordsRead{});
    CHECK(all.effects.empty());
    CHECK_FALSE(all.term.is_leading(at(1801)));
}

TEST_CASE("somebody else's key is watched, and its end is a vacancy") {
    Fixture all;
    all.start();
    all.step(0, KeySeen{.key = theirs(), .revision = 20});
    REQUIRE(all.find<FollowLeader>() != nullptr);
    CHECK(all.find<FollowLeader>()->endpoint == kThere);
    REQUIRE(all.find<WatchKey>() != nullptr);
    CHECK(all.find<WatchKey>()->revision == 21);
    CHECK(all.find<WatchKey>()->silence_max == Milliseconds(8000));
    SECTION("it is deleted") {
        all.step(50, KeyDeleted{});
        CHECK(all.find<FollowLeader>()->endpoint.empty());
        CHECK(all.asks<GrantLease>());
    }
    SECTION("the watch is silent for long: it may hang") {
        all.step(8000, WatchSilent{});
        CHECK(all.asks<LookAtKey>());
        all.step(8010, KeySeen{.key = theirs(), .revision = 22});
        CHECK(all.find<FollowLeader>() == nullptr);  // told on change
        CHECK(all.find<WatchKey>() != nullptr);
    }
    SECTION("the watch ends") {
        all.step(50, WatchEnded{"connection refused"});
        CHECK(all.find<SayLine>()->text == "connection refused; trying again");
        CHECK(all.term.timer() == at(70));
        all.step(70, TermTimer{});
        CHECK(all.asks<LookAtKey>());
        all.step(80, EtcdFailed{.why = "connection refused"});
        CHECK(all.effects.empty());  // said already
        CHECK(all.term.timer() == at(120));
    }
}

TEST_CASE("its own endpoint under another lease is a former life, to which nobody is sent") {
    Fixture all;
    all.start();
    LeaderKey former = theirs();
    former.endpoint = kHere;
    all.step(0, KeySeen{.key = former, .revision = 20});
    REQUIRE(all.find<FollowLeader>() != nullptr);
    CHECK(all.find<FollowLeader>()->endpoint.empty());
}

TEST_CASE("a campaign that was not answered is repeated with the same lease while it is young") {
    Fixture all;
    all.start();
    all.step(0, KeySeen{.key = std::nullopt, .revision = 20});
    all.step(0, LeaseGranted{.lease = kLease, .ttl = std::chrono::seconds(2)});
    int ms = 500;
    SECTION("young") {
        all.step(ms, EtcdFailed{.why = "silent"});
        all.step(ms += 20, TermTimer{});
        all.step(ms, KeySeen{.key = std::nullopt, .revision = 20});
        REQUIRE(all.asks<TakeKey>());
        CHECK(std::get<TakeKey>(all.find<AskEtcd>()->what).lease == kLease);
    }
    SECTION("old") {
        all.step(ms = 1000, EtcdFailed{.why = "silent"});
        all.step(ms += 20, TermTimer{});
        all.step(ms, KeySeen{.key = std::nullopt, .revision = 20});
        CHECK(all.asks<GrantLease>());
    }
    SECTION("etcd does not know it") {
        all.step(ms, EtcdFailed{.why = "no such lease", .is_refused = true});
        all.step(ms += 20, TermTimer{});
        all.step(ms, KeySeen{.key = std::nullopt, .revision = 20});
        CHECK(all.asks<GrantLease>());
    }
    SECTION("it was won after all") {
        all.step(ms, EtcdFailed{.why = "silent"});
        all.step(ms += 20, TermTimer{});
        all.step(ms, KeySeen{.key = ours(), .revision = kTerm});
        CHECK(all.find<ReadRecords>() != nullptr);
    }
}

TEST_CASE("a write depends on the term and on the record as it was") {
    const JobId job("llama");
    TermWrites writes(kTerm, {{job, 12}});
    CHECK(writes.guard(job).term == kTerm);
    CHECK(writes.guard(job).mod_revision == 12);
    CHECK(writes.guard(JobId("new")).mod_revision == 0);
    CHECK(writes.answered(job, false, {.is_done = true, .revision = 40, .leader_term = {}}) ==
          WriteOutcome::Done);
    CHECK(writes.guard(job).mod_revision == 40);
    // An earlier request of ours was carried out although its answer did not reach us.
    CHECK(writes.answered(job, false, {.leader_term = kTerm, .mod_revision = 41}) ==
          WriteOutcome::Again);
    CHECK(writes.guard(job).mod_revision == 41);
    CHECK(writes.answered(job, true, {.is_done = true, .revision = 42, .leader_term = {}}) ==
          WriteOutcome::Done);
    CHECK(writes.guard(job).mod_revision == 0);
    CHECK(writes.answered(job, false, {.leader_term = 50}) == WriteOutcome::Deposed);
    CHECK(writes.answered(job, false, {.leader_term = std::nullopt}) == WriteOutcome::Deposed);
}

TEST_CASE("who comes to a daemon that does not lead is sent to the leader, or waits for one") {
    Limits limits;
    limits.parked_max = 2;
    Lobby lobby(limits);
    const Join join;
    CHECK(lobby.arrives(ConnectionId(1), join) == Lobby::Answer::Wait);
    CHECK(lobby.arrives(Unfit()) == Lobby::Answer::Wait);
    CHECK(lobby.arrives(ConnectionId(2), join) == Lobby::Answer::Wait);
    CHECK(lobby.arrives(ConnectionId(3), join) == Lobby::Answer::SendOn);  // there is no room
    lobby.ended(ConnectionId(2));
    CHECK_FALSE(lobby.is_waiting(ConnectionId(2)));
    CHECK(lobby.follow("").empty());
    CHECK(lobby.follow(kThere) == std::vector<ConnectionId>{ConnectionId(1)});
    CHECK_FALSE(lobby.is_waiting(ConnectionId(1)));
    CHECK(lobby.arrives(ConnectionId(4), join) == Lobby::Answer::SendOn);
    // It has just asked that one in vain.
    Join stranded;
    stranded.unreachable = kThere;
    CHECK(lobby.arrives(ConnectionId(5), stranded) == Lobby::Answer::Wait);
    CHECK(lobby.take_all().size() == 1);
    CHECK_FALSE(lobby.is_waiting(ConnectionId(5)));
}

TEST_CASE("history is to be forgotten at the first write of a term, and then by what was written") {
    EtcdHistory history(100);
    CHECK(history.is_full(1));
    CHECK_FALSE(history.is_full(60));
    CHECK_FALSE(history.is_full(39));
    CHECK(history.is_full(1));
    CHECK(history.is_full(1000));  // a record may be larger than all that
    CHECK_FALSE(history.is_full(99));
}

}  // namespace ddprun::rdzv
