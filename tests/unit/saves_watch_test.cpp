// Goal: a node reports each save once, not more often than is of use, and says when the disk falls
// behind and when it does so no longer. Method: looks at what workers have told, at chosen times.

#include "agent/watch/saves_watch.hpp"

#include <string>
#include <vector>

#include "agent/watch/moments_told.hpp"
#include "rendezvous/events/save_figures.hpp"
#include "rendezvous/wire/codec.hpp"
#include "tests/support/catch.hpp"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using rdzv::EventKind;

const Instant kStart = Instant{} + 1h;

/// Two workers, the second of which leads the saves.
struct Node {
    Node() {
        watch.begin(Generation(3), Rank(8));
        workers[1].saves = SavesTold();
    }

    [[nodiscard]] SavesTold& told() { return *workers[1].saves; }
    void save(std::uint64_t step, Instant at) {
        told().saved += 1;
        told().step = step;
        told().saved_at = at;
        told().bytes = std::uint64_t{1200} << 20;
        told().stall = 12ms;
        told().took = 6300ms;
        told().places = 1;
    }
    SavesWatch::News look(Instant now, bool have_ended = false) {
        return watch.look(now, workers, have_ended);
    }

    SavesWatch watch{WatchLimits()};
    std::vector<WorkerMoments> workers{2};
};

TEST_CASE("a save is one event, and one message, of the rank that leads it") {
    Node node;
    CHECK(node.look(kStart).events.empty());
    node.save(1200, kStart);
    const SavesWatch::News news = node.look(kStart + 34s);
    REQUIRE(news.events.size() == 1);
    const rdzv::Event& event = news.events[0];
    CHECK(event.kind == EventKind::CheckpointSaved);
    CHECK(event.at == kStart);
    CHECK(event.generation == Generation(3));
    CHECK(event.rank == Rank(9));
    CHECK(event.step == 1200u);
    CHECK(
        rdzv::event_line(event, 1, 0ms, 100)
            .find(R"("bytes":1258291200,"took_ms":6300,"stall_ms":12,"where":"disk","saves":1})") !=
        std::string::npos);
    REQUIRE(news.seen);
    CHECK(news.seen->local_rank == LocalRank(1));
    CHECK(news.seen->age == 34s);
    CHECK(news.line.empty());
    CHECK(node.look(kStart + 40s).events.empty());
    CHECK_FALSE(node.look(kStart + 40s).seen);
}

TEST_CASE("workers that never save, or are gone, are no news") {
    Node node;
    node.workers[1].saves.reset();
    CHECK(node.look(kStart).events.empty());
    node.workers.clear();
    CHECK(node.look(kStart, true).events.empty());
    CHECK_FALSE(node.watch.due());
}

TEST_CASE("many saves in a second are one event of the last one, unless a worker ends") {
    Node node;
    node.save(1, kStart);
    CHECK(node.look(kStart).events.size() == 1);
    node.save(2, kStart + 100ms);
    CHECK(node.look(kStart + 100ms).events.empty());
    CHECK(node.watch.due() == kStart + 1s);
    node.save(3, kStart + 200ms);
    SECTION("the held back ones are told when they are due") {
        const SavesWatch::News news = node.look(kStart + 1s);
        REQUIRE(news.events.size() == 1);
        CHECK(news.events[0].step == 3u);
        CHECK(news.events[0].at == kStart + 200ms);
        CHECK(number_of(news.events[0], "saves") == 2);
        CHECK_FALSE(node.watch.due());
    }
    SECTION("nothing is held back at the end") {
        CHECK(node.look(kStart + 200ms, true).events.size() == 1);
    }
    SECTION("the next generation counts anew") {
        node.watch.begin(Generation(4), Rank(0));
        node.told() = {};
        node.save(1, kStart + 300ms);
        const SavesWatch::News news = node.look(kStart + 300ms);
        REQUIRE(news.events.size() == 1);
        CHECK(news.events[0].generation == Generation(4));
        CHECK(news.events[0].rank == Rank(1));
    }
}

TEST_CASE("a save that has failed is an event") {
    Node node;
    node.told().failed = 1;
    node.told().failed_step = 7;
    node.told().failed_at = kStart;
    node.told().failed_reason = "rank 1: cannot write\n\x1b[31m/x";
    const SavesWatch::News news = node.look(kStart + 1s);
    REQUIRE(news.events.size() == 1);
    CHECK(news.events[0].kind == EventKind::CheckpointFailed);
    CHECK(news.events[0].step == 7u);
    CHECK(news.events[0].at == kStart);
    CHECK(text_of(news.events[0], "reason") == R"(rank 1: cannot write\n\x1b[31m/x)");
    CHECK(news.seen.value().failed_reason == text_of(news.events[0], "reason"));
}

TEST_CASE("the reason why a save has failed has a bound, however its bytes are shown") {
    Node node;
    node.told().failed = 1;
    node.told().failed_reason = std::string(508, '\x01');
    const SavesWatch::News news = node.look(kStart);
    const std::string reason = text_of(news.events.at(0), "reason");
    CHECK(reason.starts_with(R"(\x01\x01)"));
    CHECK(reason.ends_with("…"));
    CHECK(reason.size() <= WatchLimits().save_reason_columns_max + std::string("…").size());
}

TEST_CASE("a disk falls behind after three late saves in a row, until three are in time") {
    Node node;
    Instant now = kStart;
    node.save(1, now);
    node.told().interval = 2100ms;
    node.told().late = 2;
    CHECK(node.look(now).line.empty());
    now += 5s;
    node.told().late = 3;
    SavesWatch::News news = node.look(now);
    CHECK(news.line ==
          "warning: checkpoints fall behind: 3 saves in a row were asked for while the one before "
          "was still being written; the last one took 6.3 s, and they are asked for every 2.1 s; "
          "save less often, use a faster disk, or raise disk_every with --memory-checkpoints");
    REQUIRE(news.events.size() == 1);
    CHECK(news.events[0].kind == EventKind::CheckpointBehind);
    CHECK("warning: " + text_of(news.events[0], "text") == news.line);
    now += 5s;
    node.told().late = 4;
    CHECK(node.look(now).line.empty());  // said already
    node.told().late = 0;
    node.told().in_time = 2;
    CHECK(node.look(now).events.empty());
    node.told().in_time = 3;
    news = node.look(now);
    CHECK(news.line ==
          "checkpoints keep up again: the last 3 saves were asked for after the one before had "
          "ended");
    REQUIRE(news.events.size() == 1);
    CHECK(text_of(news.events[0], "text").empty());
    now += 5s;
    node.told().in_time = 4;
    CHECK(node.look(now).events.empty());
}

TEST_CASE("a worker's numbers have bounds in the message") {
    Node node;
    node.save(1, kStart);
    node.told().took = Duration::max();
    node.told().bytes = ~std::uint64_t{0};
    const SavesWatch::News news = node.look(kStart + 1s);
    REQUIRE(news.seen);
    CHECK(news.seen->took == std::chrono::hours(24 * 3650));
    CHECK(number_of(news.events.at(0), "bytes") > 0);
}

TEST_CASE("a rendezvous hears of a save when it is news, and again when it is met anew") {
    MomentsTold told;
    told.begin(Generation(3), 8);
    const rdzv::SavesSeen seen{.local_rank = LocalRank(1), .saved = 1, .step = 5, .age = 10ms};
    CHECK_FALSE(told.note_told(kStart, 5u, 0ms, false, seen));  // no rendezvous hears it
    const auto met = told.met(kStart + 2s, true);
    REQUIRE(met);
    REQUIRE(met->saves);
    CHECK(met->saves->saved == 1);
    CHECK(met->saves->age == 2010ms);
    CHECK_FALSE(told.note_told(kStart + 3s, 5u, 0ms, false));
    const auto next = told.note_told(kStart + 3s, 5u, 0ms, false, seen);
    REQUIRE(next);
    CHECK(next->saves == seen);
    told.begin(Generation(4), 8);
    CHECK_FALSE(told.met(kStart + 4s, true));
}

TEST_CASE("what a node tells of its saves arrives as it was sent") {
    const rdzv::AgentMessage sent =
        rdzv::Reached{.generation = Generation(3),
                      .saves = rdzv::SavesSeen{.local_rank = LocalRank(1),
                                               .saved = 2,
                                               .step = 1200,
                                               .bytes = 4096,
                                               .stall = 12ms,
                                               .took = 840ms,
                                               .age = 34s,
                                               .places = 5,
                                               .failed = 1,
                                               .failed_step = 7,
                                               .failed_age = 9s,
                                               .failed_reason = "the disk is full",
                                               .behind = "too slow"}};
    const Result<rdzv::AgentMessage> heard =
        rdzv::decode_agent_message(rdzv::encode(sent), Limits());
    REQUIRE(heard);
    CHECK(*heard == sent);
}

TEST_CASE("saves are counted over a run's generations, and read as a sentence") {
    rdzv::SaveFigures figures;
    CHECK_FALSE(figures.has_any());
    rdzv::SavesSeen seen{.saved = 2,
                         .step = 1200,
                         .bytes = std::uint64_t{1229} << 20,
                         .stall = 12ms,
                         .took = 840ms,
                         .age = 0ms,
                         .places = 1};
    for (const std::uint64_t generation : {1, 2}) {
        for (const rdzv::Event& event :
             rdzv::save_events(kStart, Generation(generation), Rank(0), {}, seen)) {
            figures.take(event);
        }
    }
    CHECK(figures.saves() == 4);
    CHECK(rdzv::saves_text(figures, kStart + 34s) ==
          "step 1200, 1.2 GiB in 840 ms, stalled 12 ms, on disk, 34.0 s ago");
    const rdzv::SavesSeen before = seen;
    seen.saved = 3;
    seen.failed = 1;
    seen.places = 7;
    seen.behind = "checkpoints fall behind: …";
    for (const rdzv::Event& event :
         rdzv::save_events(kStart, Generation(2), Rank(0), before, seen)) {
        figures.take(event);
    }
    CHECK(rdzv::saves_text(figures, kStart) ==
          "step 1200, 1.2 GiB in 840 ms, stalled 12 ms, on disk and in memory and in a partner's "
          "memory, 0 ms ago; 1 save failed; checkpoints fall behind: …");
    figures.take({.kind = EventKind::Formed});
    CHECK(figures.behind().empty());
}

}  // namespace
}  // namespace ddprun::agent
