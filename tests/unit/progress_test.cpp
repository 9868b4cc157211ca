// How far ranks are, how fast they are, and which one holds up all others.

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "agent/watch/hang_notice.hpp"
#include "agent/watch/host_memory_notice.hpp"
#include "agent/watch/live_line.hpp"
#include "agent/watch/moments_told.hpp"
#include "agent/watch/node_progress.hpp"
#include "agent/watch/store_silence.hpp"
#include "base/rng.hpp"
#include "rendezvous/events/rank_board.hpp"
#include "rendezvous/events/slowest.hpp"
#include "rendezvous/events/stall.hpp"
#include "rendezvous/events/time_use.hpp"
#include "tests/support/catch.hpp"

using namespace ddprun;
using namespace ddprun::agent;
using namespace std::chrono_literals;
using nlohmann::json;

namespace {

constexpr Instant kStart = Instant(1h);
constexpr double kMillisecond = 1e6;

/// A step of `ranks` ranks: each has about 90 ms of its own, ± 4 ms, that of `slow` takes longer by
/// `more`. Each rank waits for the last.
std::vector<rdzv::StepTime> step_of(Rng& rng, int ranks, int slow, double more) {
    std::vector<rdzv::StepTime> times;
    double longest = 0;
    for (int rank = 0; rank < ranks; ++rank) {
        const double jitter = static_cast<double>(rng.below(8000)) / 1000 - 4;
        const double own = (90 + jitter + (rank == slow ? more : 0)) * kMillisecond;
        longest = std::max(longest, own);
        times.push_back({.rank = Rank(rank), .whole = 0, .own = own});
    }
    for (rdzv::StepTime& time : times) {
        time.whole = longest + 10 * kMillisecond;
    }
    return times;
}

WorkerState at_step(std::uint64_t number, Instant at, Duration waited) {
    WorkerState worker;
    worker.phase = rdzv::RankPhase::Training;
    worker.moments.first_step = kStart;
    worker.moments.first_number = 1;
    worker.moments.step = number;
    worker.moments.last =
        StepTold{.number = number, .at = at, .waited = waited, .first_waited = 0ms};
    return worker;
}

rdzv::Progress progress_of(int local_rank, std::uint64_t step_ns, std::uint64_t own_ns,
                           Generation generation = Generation(1)) {
    return {.generation = generation,
            .ranks = {{.local_rank = LocalRank(local_rank),
                       .phase = rdzv::RankPhase::Training,
                       .step = 7,
                       .step_age_ms = 12,
                       .step_ns = step_ns,
                       .own_ns = own_ns,
                       .memory_bytes = 4096}}};
}

rdzv::Event event_at(rdzv::EventKind kind, Duration after, std::uint64_t generation = 0) {
    return {.kind = kind, .at = kStart + after, .generation = Generation(generation)};
}

/// A node's part of the generation is proven empty, as a rendezvous hears it.
rdzv::Event empty_at(Duration after, std::uint64_t generation, Milliseconds since_end,
                     Milliseconds since_proof) {
    rdzv::Event event = event_at(rdzv::EventKind::Empty, after, generation);
    event.fields = {{"ended_ms_ago", std::int64_t{since_end.count()}},
                    {"proven_ms_ago", std::int64_t{since_proof.count()}}};
    return event;
}

}  // namespace

TEST_CASE("a rank slowed at random among 64 is named, and nobody where none is") {
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
        Rng rng(seed);
        const int slow = static_cast<int>(rng.below(64));
        const auto found = rdzv::find_slowest(step_of(rng, 64, slow, 30));
        INFO("seed " << seed);
        REQUIRE(found);
        CHECK(found->rank == Rank(slow));
        CHECK(found->cost_share > 0.15);
        CHECK(found->cost_share < 0.30);
        CHECK_FALSE(rdzv::find_slowest(step_of(rng, 64, -1, 0)));
    }
}

TEST_CASE("of two ranks the slower one is named, of one nobody") {
    CHECK(rdzv::find_slowest({{.rank = Rank(0), .whole = 100, .own = 95},
                              {.rank = Rank(1), .whole = 100, .own = 40}})
              ->rank == Rank(0));
    CHECK_FALSE(rdzv::find_slowest({{.rank = Rank(0), .whole = 100, .own = 95}}));
    CHECK_FALSE(rdzv::find_slowest({}));
}

TEST_CASE("steps per second are those since the first step, later those of the last ten seconds") {
    NodeProgress node{WatchLimits()};
    const auto told = [&](std::uint64_t number, Duration after, Duration waited) {
        return node
            .tell(kStart + after + 5ms, Generation(1), {at_step(number, kStart + after, waited)})
            .ranks.front();
    };
    CHECK_FALSE(told(1, 0ms, 0ms).step_ns);
    const rdzv::RankProgress early = told(11, 1s, 400ms);
    CHECK(early.step_ns == 100'000'000u);
    CHECK(early.own_ns == 60'000'000u);
    CHECK(early.step_age_ms == 5u);
    for (int second = 2; second <= 60; ++second) {
        // From here on a step takes a second, and no rank is waited for.
        const auto number = static_cast<std::uint64_t>(10 + second);
        const rdzv::RankProgress late = told(number, std::chrono::seconds(second), 400ms);
        if (second > 20) {
            CHECK(late.step_ns == 1'000'000'000u);
            CHECK(late.own_ns == 1'000'000'000u);
        }
    }
    // The next generation begins anew.
    CHECK_FALSE(node.tell(kStart + 61s, Generation(2), {at_step(1, kStart + 61s, 0ms)})
                    .ranks.front()
                    .step_ns);
}

TEST_CASE("who looks often keeps no more samples than who looks each second") {
    NodeProgress node{WatchLimits()};
    rdzv::RankProgress last;
    for (std::uint64_t i = 1; i <= 100'000; ++i) {
        last = node.tell(kStart + i * 1ms, Generation(1), {at_step(i + 1, kStart + i * 1ms, 0ms)})
                   .ranks.front();
    }
    CHECK(last.step_ns == 1'000'000u);
}

TEST_CASE("the board has each rank as it was told last, and the slowest with its node") {
    rdzv::RankBoard board;
    for (int node = 0; node < 4; ++node) {
        const std::string name = "n\"" + std::to_string(node);
        board.take(kStart, {.node = NodeId(name), .hostname = "h", .base_rank = node},
                   progress_of(0, 100'000'000, node == 2 ? 90'000'000 : 50'000'000));
    }
    board.judge(kStart, kStart);
    const json ranks = json::parse(board.told().ranks_json(100));
    REQUIRE(ranks.size() == 4);
    CHECK(ranks[2] == json::parse(R"({"rank":2,"node":"n\"2","local_rank":0,"phase":"training",
        "step":7,"step_age_ms":12,"steps_per_s":10,"own_share":0.9,"memory_bytes":4096})"));
    CHECK(json::parse(board.told().slowest_json()) ==
          json::parse(R"({"rank":2,"node":"n\"2","host":"h","cost_share":0.4})"));
    const json line = json::parse(board.line(NodeId("n\"1")));
    CHECK(line["event"] == "progress");
    CHECK(line["ranks"].size() == 1);
    CHECK(line["slowest"]["rank"] == 2);
    CHECK(json::parse(board.told().ranks_json(2)).size() == 2);
    CHECK(board.told(NodeId("n\"1"))->step_ns == 100'000'000u);

    // Old news are forgotten, and so is the last generation.
    board.take(kStart + 9s, {.node = NodeId("n\"0"), .hostname = "h", .base_rank = 0},
               progress_of(0, 100, 100));
    board.judge(kStart + 1s, kStart + 1s);
    CHECK(json::parse(board.told().ranks_json(100)).size() == 1);
    CHECK(board.told().slowest_json().empty());
    board.take(kStart, {.node = NodeId("m"), .hostname = "h", .base_rank = 5},
               progress_of(0, 100, 100, Generation(2)));
    CHECK(json::parse(board.told().ranks_json(100))[0]["rank"] == 5);
    board.take(kStart, {.node = NodeId("n"), .hostname = "h", .base_rank = 0},
               progress_of(0, 100, 100, Generation(1)));
    CHECK(board.told().rank_count() == 1);
}

namespace {

/// Each node reports what its local rank 0 does; the board judges the reports.
class LookedAt {
public:
    void look(const std::vector<rdzv::Activity>& activities) {
        now_ += 1s;
        for (std::size_t i = 0; i < activities.size(); ++i) {
            rdzv::RankProgress rank{.local_rank = LocalRank(0), .activity = activities[i]};
            rank.gpu_permille = gpu_permille;
            rank.output_age_ms = 100;
            board.take(now_,
                       {.node = NodeId("n" + std::to_string(i)),
                        .hostname = "h" + std::to_string(i),
                        .base_rank = static_cast<int>(i)},
                       {.generation = Generation(1), .ranks = {rank}});
        }
        board.judge(now_, now_ - 10s);
    }

    std::optional<int> gpu_permille;
    rdzv::RankBoard board;

private:
    Instant now_ = kStart;
};

}  // namespace

TEST_CASE("of a program without steps the one rank is named that never waits") {
    using rdzv::Activity;
    LookedAt job;
    for (int i = 0; i < 9; ++i) {
        job.look({Activity::Waits, i % 3 == 0 ? Activity::Computes : Activity::Waits,
                  i % 2 == 0 ? Activity::Sleeps : Activity::Computes});
        CHECK_FALSE(job.board.slowest());
    }
    job.look({Activity::Waits, Activity::Waits, Activity::Computes});
    REQUIRE(job.board.slowest());
    CHECK(job.board.slowest()->slowest.rank == Rank(2));
    CHECK(job.board.slowest()->where.hostname == "h2");
    CHECK(job.board.slowest()->slowest.cost_share > 0.6);
    CHECK(job.board.slowest()->slowest.cost_share < 0.8);
}

TEST_CASE("of a program without steps nobody is named while more than one rank hardly waits") {
    using rdzv::Activity;
    const auto named_after = [](const std::vector<rdzv::Activity>& activities,
                                std::optional<int> gpu_permille) {
        LookedAt job;
        job.gpu_permille = gpu_permille;
        for (int i = 0; i < 20; ++i) {
            job.look(activities);
        }
        return job.board.slowest().has_value();
    };
    CHECK(named_after({Activity::Waits, Activity::Computes, Activity::Waits}, {}));
    CHECK_FALSE(named_after({Activity::Waits, Activity::Computes, Activity::Computes}, {}));
    CHECK_FALSE(named_after({Activity::Waits, Activity::Waits, Activity::Waits}, {}));
    CHECK_FALSE(named_after({Activity::Computes}, {}));
    CHECK_FALSE(named_after({Activity::Waits, Activity::Computes, Activity::Unknown}, {}));
    CHECK_FALSE(named_after({Activity::Waits, Activity::Computes, Activity::Waits}, 990));
}

TEST_CASE("a rendezvous is told each moment once, and a new one all of them") {
    MomentsTold told;
    told.begin(Generation(3), 8);
    rdzv::Event main{
        .kind = rdzv::EventKind::Main, .at = kStart, .generation = Generation(3), .rank = Rank(9)};
    CHECK_FALSE(told.note(kStart + 1s, {main}));  // no rendezvous hears it
    const auto first = told.met(kStart + 2s, true);
    REQUIRE(first);
    CHECK(first->generation == Generation(3));
    CHECK(first->moments == std::vector<rdzv::ReachedMoment>{
                                {.what = rdzv::Moment::Main, .last = LocalRank(1), .age = 2000ms}});
    CHECK_FALSE(told.note(kStart + 3s, {main}));
    rdzv::Event step{.kind = rdzv::EventKind::FirstStep,
                     .at = kStart,
                     .generation = Generation(3),
                     .rank = Rank(8),
                     .step = 41};
    const auto second = told.note(kStart + 4s, {step});
    REQUIRE(second);
    CHECK(second->moments.size() == 1);
    CHECK(second->moments[0].step == 41u);
    told.cut_off();
    CHECK(told.met(kStart + 5s, true)->moments.size() == 2);
    CHECK_FALSE(told.met(kStart + 5s, false));  // an older rendezvous
    told.begin(Generation(4), 8);
    CHECK_FALSE(told.met(kStart + 5s, true));
}

TEST_CASE("a rendezvous is told of checkpoints as they cost more, of the last step at the end") {
    MomentsTold told;
    told.begin(Generation(3), 8);
    CHECK_FALSE(told.note_told(kStart, 5u, 20ms, true));  // no rendezvous hears it
    CHECK_FALSE(told.met(kStart, true));                  // nor has anything begun
    const auto first = told.note_told(kStart, 6u, 30ms, false);
    REQUIRE(first);
    CHECK(first->generation == Generation(3));
    CHECK(first->moments.empty());
    CHECK(first->checkpointing == 30ms);
    CHECK(first->step == 6u);
    CHECK_FALSE(told.note_told(kStart, 7u, 30ms, false));
    const auto last = told.note_told(kStart, 8u, 30ms, true);
    REQUIRE(last);
    CHECK(last->step == 8u);
    CHECK_FALSE(told.note_told(kStart, 8u, 30ms, true));
    const auto later = told.note(kStart, {{.kind = rdzv::EventKind::Main,
                                           .at = kStart,
                                           .generation = Generation(3),
                                           .rank = Rank(9)}});
    CHECK(later->checkpointing == 30ms);
    told.begin(Generation(4), 8);
    CHECK_FALSE(told.note_told(kStart, std::nullopt, 0ms, true));
}

namespace {

using rdzv::Activity;

/// Ranks, the first half of which are on host a, and what find_stall() says of them.
struct Ranks {
    std::vector<rdzv::RankProgress> told;

    void add(Activity activity, std::optional<std::uint64_t> step, Milliseconds age) {
        rdzv::RankProgress rank{.phase = rdzv::RankPhase::Training, .activity = activity};
        const auto ms = static_cast<std::uint64_t>(age.count());
        if (step) {
            rank.step = step;
            rank.step_age_ms = ms;
            rank.step_ns = 50'000'000;
        } else {
            rank.output_age_ms = ms;
        }
        told.push_back(rank);
    }

    [[nodiscard]] std::optional<rdzv::Stall> stall(Duration ago = 0s) const {
        std::vector<rdzv::RankSeen> ranks;
        for (std::size_t i = 0; i < told.size(); ++i) {
            ranks.push_back({.rank = Rank(static_cast<int>(i)),
                             .host = 2 * i < told.size() ? "a" : "b",
                             .told = &told[i],
                             .ago = ago});
        }
        return rdzv::find_stall(ranks, WatchLimits());
    }

    [[nodiscard]] std::string text() const {
        const std::optional<rdzv::Stall> found = stall();
        return found ? found->text : "";
    }
};

}  // namespace

TEST_CASE("a job in which no rank gets further names who does not wait for others") {
    Ranks ranks;
    ranks.add(Activity::Waits, 49, 40s);
    ranks.add(Activity::Sleeps, 49, 41s);
    CHECK(ranks.text() == "no step for 40 s; all at step 49: rank 1 on b sleeps, the other waits");
    CHECK(ranks.stall()->culprit.rank == Rank(1));
    CHECK(ranks.stall()->culprit.host == "b");
    CHECK(ranks.stall(5s)->age == 45s);

    SECTION("one that stands still comes before one that sleeps; more are counted") {
        for (int i = 0; i < 5; ++i) {
            ranks.add(Activity::Stopped, 49, 40s);
        }
        CHECK(ranks.text() ==
              "no step for 40 s; all at step 49: ranks 2, 3, 4, 5 and 1 more stand still (SIGSTOP "
              "or a debugger)");
        CHECK(ranks.stall()->culprit.rank == Rank(2));
    }
    SECTION("one that is behind is named, whatever it does") {
        ranks.told[0].step = 48;
        CHECK(ranks.text() ==
              "no step for 40 s; rank 0 on a is behind, at step 48, and waits, the other sleeps");
        CHECK(ranks.stall()->culprit.step == 48u);
    }
    SECTION("nobody is named if all do the same") {
        ranks.told[1].activity = Activity::Waits;
        CHECK(ranks.text() == "no step for 40 s; all at step 49: all wait");
        CHECK_FALSE(ranks.stall()->culprit.rank);
        ranks.told[1].activity = ranks.told[0].activity = Activity::Unknown;
        CHECK(ranks.text() == "no step for 40 s; all at step 49");
    }
    SECTION("who waits is not named because of one of whom nothing is known") {
        ranks.told[1].activity = Activity::Unknown;
        CHECK(ranks.text() == "no step for 40 s; all at step 49: rank 0 on a waits");
        CHECK_FALSE(ranks.stall()->culprit.rank);
        ranks.told[1].step = 48;
        CHECK(ranks.text() ==
              "no step for 40 s; rank 1 on b is behind, at step 48, the other waits");
    }
    SECTION("ranks with GPUs may wait by computing") {
        ranks.told[1].activity = Activity::Computes;
        CHECK(ranks.text() ==
              "no step for 40 s; all at step 49: rank 1 on b computes, the other waits");
        ranks.told[1].gpu_permille = 1000;
        CHECK(ranks.text() ==
              "no step for 40 s; all at step 49: rank 0 on a waits, rank 1 on b computes");
        CHECK_FALSE(ranks.stall()->culprit.rank);
    }
    SECTION("a rank that has told no step is not said to be at one") {
        ranks.told[1].step = ranks.told[1].step_age_ms = {};
        CHECK(ranks.text() == "no step for 40 s; at step 49: rank 1 on b sleeps, the other waits");
    }
}

TEST_CASE("who waits for the store is named if no rank is known to wait for nobody") {
    Ranks ranks;
    ranks.add(Activity::WaitsForStore, 49, 40s);
    ranks.add(Activity::Sleeps, 49, 41s);
    CHECK(ranks.text() ==
          "no step for 40 s; all at step 49: rank 1 on b sleeps, the other waits for the "
          "workers' store");
    ranks.told[1].activity = Activity::Waits;
    CHECK(ranks.text() ==
          "no step for 40 s; all at step 49: rank 0 on a waits for the workers' store, the "
          "other waits");
    CHECK(ranks.stall()->culprit.rank == Rank(0));
    ranks.told[1].activity = Activity::WaitsForStore;
    CHECK(ranks.text() == "no step for 40 s; all at step 49: all wait for the workers' store");
    CHECK_FALSE(ranks.stall()->culprit.rank);
    ranks.told[1].activity = Activity::Computes;
    ranks.told[1].gpu_permille = 1000;
    CHECK(ranks.text() ==
          "no step for 40 s; all at step 49: rank 0 on a waits for the workers' store, rank 1 "
          "on b computes");
}

TEST_CASE("ranks that have ended, slow steps and old news make no stall") {
    Ranks ranks;
    ranks.add(Activity::Waits, 49, 40s);
    ranks.add(Activity::Sleeps, 49, 41s);

    SECTION("who has ended does not count") {
        ranks.told[1].phase = rdzv::RankPhase::Finished;
        CHECK(ranks.text() == "no step for 40 s; at step 49: rank 0 on a waits");
        CHECK_FALSE(ranks.stall()->culprit.rank);
        ranks.told[0].phase = rdzv::RankPhase::Failed;
        CHECK_FALSE(ranks.stall());
    }
    SECTION("news that come seldom make no stall") {
        ranks.told[1].step_age_ms = ranks.told[0].step_age_ms = 9'000;
        CHECK_FALSE(ranks.stall(30s));
    }
    SECTION("how long a step takes is not known before the second one") {
        ranks.told[0].step_ns = ranks.told[1].step_ns = {};
        CHECK_FALSE(ranks.stall());
        ranks.told[1].step_age_ms = ranks.told[0].step_age_ms = 60'000;
        CHECK(ranks.stall());
    }
    SECTION("one that gets further is enough, and slow steps are waited for") {
        ranks.told[1].step_age_ms = 9'999;
        CHECK_FALSE(ranks.stall());
        ranks.told[1].step_age_ms = 40'000;
        ranks.told[0].step_ns = 4'100'000'000;
        CHECK_FALSE(ranks.stall());
    }
}

TEST_CASE("a job that tells no steps is stalled once it writes nothing, and not all compute") {
    Ranks ranks;
    ranks.add(Activity::Waits, {}, 31s);
    ranks.add(Activity::Computes, {}, 32s);
    CHECK(ranks.text() == "no output for 31 s; rank 1 on b computes, the other waits");
    CHECK(ranks.stall()->age == 31s);
    ranks.told[0].activity = Activity::Computes;
    CHECK_FALSE(ranks.stall());
    ranks.told[0].activity = Activity::Waits;
    ranks.told[1].output_age_ms = 29'999;
    CHECK_FALSE(ranks.stall());
    // A rank that has never written does not report when it wrote last.
    ranks.told[1].output_age_ms = {};
    CHECK(ranks.stall());
    CHECK_FALSE(rdzv::find_stall({}, WatchLimits()));
}

TEST_CASE("that no rank tells a step is said once a generation, of the one furthest behind") {
    HangNotice notice(600s);
    const auto look = [&notice](Duration after, std::uint64_t generation,
                                const std::vector<WorkerState>& workers) {
        return notice.look_at_steps(kStart + after, Generation(generation), Rank(8), "gpu-07",
                                    workers);
    };
    std::vector<WorkerState> workers = {at_step(9, kStart + 50s, 0s), at_step(7, kStart + 60s, 0s),
                                        at_step(3, kStart, 0s), WorkerState()};
    workers[2].phase = rdzv::RankPhase::Finished;
    CHECK_FALSE(look(659s, 1, workers));
    const auto seen = look(661s, 1, workers);
    REQUIRE(seen);
    CHECK(seen->rank == Rank(9));
    CHECK(seen->step == 7u);
    CHECK(seen->text ==
          "no rank on gpu-07 has told a step for 600 s; rank 9 on gpu-07 is behind, at step 7");
    CHECK(notice.is_said(Generation(1)));
    CHECK_FALSE(look(1260s, 1, workers));
    CHECK(look(1260s, 2, workers));

    // A rank that has told no step gets no notice, and with 0 no rank gets one.
    CHECK_FALSE(look(9999s, 3, {WorkerState()}));
    CHECK_FALSE(look(9999s, 3, {}));
    CHECK_FALSE(HangNotice(0s).look_at_steps(kStart + 9999s, Generation(1), Rank(0), "h", workers));
}

TEST_CASE("a store that nobody asks is a sign of a hang if somebody waits in it") {
    StoreSilence silence;
    CHECK_FALSE(silence.is_silent(kStart, 600s, 7));
    CHECK_FALSE(silence.is_silent(kStart + 599s, 600s, 7));
    CHECK(silence.is_silent(kStart + 600s, 600s, 7));
    CHECK_FALSE(silence.is_silent(kStart + 601s, 600s, 8));
    CHECK_FALSE(silence.is_silent(kStart + 1200s, 600s, 8));
    CHECK(silence.is_silent(kStart + 1201s, 600s, 8));
    silence.begin();
    CHECK_FALSE(silence.is_silent(kStart + 1202s, 600s, 8));

    CHECK_FALSE(StoreSilence::seen(600s, 8, "gpu-00", {.clients = 8}));
    const auto seen = StoreSilence::seen(
        600s, 8, "gpu-00", {.clients = 7, .waiting = 7, .key = "default_pg/\n5", .for_key = 6});
    REQUIRE(seen);
    CHECK(seen->host == "gpu-00");
    CHECK(seen->text ==
          "nobody has asked the workers' store on gpu-00 for 600 s, and 7 of its 7 clients wait in "
          "it, 6 for the key default_pg/\\n5; of 8 ranks not all have come to it");
    CHECK(StoreSilence::seen(600s, 1, "h", {.clients = 1, .waiting = 1, .key = "k", .for_key = 1})
              ->text ==
          "nobody has asked the workers' store on h for 600 s, and 1 of its 1 client waits in it, "
          "1 for the key k");
}

TEST_CASE("a sign of a hang is told to who hears moments, and again to who is met anew") {
    MomentsTold told;
    told.begin(Generation(3), 8);
    const rdzv::HangSeen seen{
        .rank = Rank(9), .step = 7, .host = "h", .collective = {}, .text = "t"};
    CHECK_FALSE(told.note_hang(kStart, seen));
    const auto met = told.met(kStart, true);
    REQUIRE(met);
    CHECK(met->hang == seen);
    CHECK(told.note_hang(kStart, seen)->hang == seen);
    CHECK_FALSE(told.note_told(kStart, 5u, 20ms, true)->hang);
    told.begin(Generation(4), 8);
    CHECK_FALSE(told.met(kStart, true));
}

TEST_CASE("that a node's memory gets short is said once a generation, with who has most") {
    HostMemoryNotice notice{WatchLimits()};
    rdzv::Progress progress = progress_of(0, 1, 1);
    progress.ranks.push_back({.local_rank = LocalRank(1), .memory_bytes = std::uint64_t{3} << 30});
    progress.memory = rdzv::HostMemory{.bytes = 899, .limit_bytes = 1000, .pressure_permille = {}};
    CHECK_FALSE(notice.look(progress, Rank(8), "gpu-07"));
    progress.memory->bytes = std::uint64_t{9} << 30;
    progress.memory->limit_bytes = std::uint64_t{10} << 30;
    CHECK(notice.look(progress, Rank(8), "gpu-07") ==
          "warning: 90 % of the memory of gpu-07 is in use: 9.0 of 10.0 GiB; beyond it processes "
          "are killed; of the workers, rank 9 has most of it: 3.0 GiB");
    CHECK_FALSE(notice.look(progress, Rank(8), "gpu-07"));
    progress.generation = Generation(2);
    const std::vector<rdzv::RankProgress> ranks = std::exchange(progress.ranks, {});
    CHECK_FALSE(notice.look(progress, Rank(8), "gpu-07"));  // no worker runs yet
    progress.ranks = ranks;
    CHECK(notice.look(progress, Rank(8), "gpu-07"));
    progress.generation = Generation(3);
    progress.memory.reset();
    CHECK_FALSE(notice.look(progress, Rank(8), "gpu-07"));
}

TEST_CASE("the board tells what GPUs and memory do") {
    rdzv::RankBoard board;
    rdzv::Progress progress = progress_of(0, 100'000'000, 50'000'000);
    progress.ranks[0].memory_peak_bytes = 8192;
    progress.ranks[0].gpu_permille = 973;
    progress.ranks[0].gpu_memory_bytes = 5;
    progress.ranks[0].gpu_memory_total_bytes = 80;
    progress.ranks[0].gpu_milliwatts = 412'300;
    progress.memory = rdzv::HostMemory{.bytes = 9, .limit_bytes = 10, .pressure_permille = 125};
    board.take(kStart, {.node = NodeId("n"), .hostname = "h", .base_rank = 0}, progress);
    const json line = json::parse(board.line(NodeId("n")));
    CHECK(line["memory_bytes"] == 9);
    CHECK(line["memory_limit_bytes"] == 10);
    CHECK(line["memory_pressure"] == 0.125);
    const json rank = line["ranks"][0];
    CHECK(rank["memory_peak_bytes"] == 8192);
    CHECK(rank["gpu_use"] == 0.973);
    CHECK(rank["gpu_memory_bytes"] == 5);
    CHECK(rank["gpu_memory_total_bytes"] == 80);
    CHECK(rank["gpu_power_w"] == 412);
    CHECK(board.told(NodeId("n"))->memory == progress.memory);
}

TEST_CASE("of a whole job it waits from its first node on, and until the last one is empty") {
    using rdzv::EventKind;
    rdzv::TimeUse use(Limits(), rdzv::EventsOf::Job);
    for (const rdzv::Event& event : {
             event_at(EventKind::Begun, 0s),
             event_at(EventKind::Joined, 1s),
             event_at(EventKind::Joined, 5s),
             event_at(EventKind::Formed, 6s, 1),
             event_at(EventKind::Spawned, 7s, 1),
             event_at(EventKind::FirstStep, 10s, 1),
             event_at(EventKind::Joined, 20s, 1),  // a spare
             event_at(EventKind::Stop, 30s, 1),
             empty_at(31s, 1, 500ms, 100ms),
             empty_at(33s, 1, 2s, 1900ms),
             event_at(EventKind::Formed, 38s, 2),
             event_at(EventKind::FirstStep, 40s, 2),
         }) {
        use.take(event);
    }
    const rdzv::TimeShares shares = use.shares(kStart + 50s);
    CHECK(shares.waiting == 5s + 5s);
    CHECK(shares.starting == 5s);
    CHECK(shares.restarting == 5s);
    CHECK(shares.training == 30s);
    CHECK_FALSE(shares.is_estimated);
    const std::vector<rdzv::Restart> restarts = use.restarts(kStart + 50s);
    REQUIRE(restarts.size() == 1);
    CHECK(rdzv::restart_text(restarts[0]) ==
          "generation 1 to 2, 10.0 s: stop 1.0 s, prove empty 100 ms, get ready 1.9 s, wait for "
          "nodes 5.0 s, first step 2.0 s");
}

TEST_CASE("the live line tells how far the job is once rank 0 tells steps") {
    rdzv::TimeUse use{Limits()};
    LiveLine line{WatchLimits()};
    line.begin(Generation(1), true, 2, 16);
    CHECK(line.text(kStart, WorkerMoments(), use).empty());
    WorkerMoments told = at_step(1, kStart, 0ms).moments;
    CHECK(line.text(kStart, told, use) == "ddprun: generation 1 | 2 nodes, 16 workers | step 1");
    told = at_step(21, kStart + 10s, 0ms).moments;
    told.last->total_steps = 9021;
    told.last->loss = 0.123456;
    CHECK(line.text(kStart + 10s, told, use) ==
          "ddprun: generation 1 | 2 nodes, 16 workers | step 21 of 9021 | 2.00 steps/s | loss "
          "0.1235 | 1 h 15 min left");
    // A rank that hangs gains no time.
    told.last->total_steps = 61;
    CHECK(line.text(kStart + 15s, told, use).ends_with(" | 15 s left"));
    CHECK(line.text(kStart + 90s, told, use)
              .ends_with(" | step 21 of 61 | no step for 1 min 20 s | loss 0.1235"));
    told.last->total_steps = 25;
    CHECK(line.text(kStart + 15s, told, use).ends_with(" | 0 s left"));
    told.last->total_steps = ~std::uint64_t{0} - 1;
    CHECK(line.text(kStart + 10s, told, use).ends_with("| 11574 d 1 h left"));
}

TEST_CASE("the live line tells of restarts, and is that of group rank 0 alone") {
    using rdzv::EventKind;
    rdzv::TimeUse use{Limits()};
    LiveLine line{WatchLimits()};
    line.begin(Generation(1), true, 1, 1);
    const auto take = [&](EventKind kind, Instant at, int generation) {
        use.take({.kind = kind, .at = at, .generation = Generation(generation)});
    };
    take(EventKind::Formed, kStart, 1);
    take(EventKind::FirstStep, kStart, 1);
    WorkerMoments told = at_step(1, kStart, 0ms).moments;
    CHECK(line.text(kStart, told, use) == "ddprun: generation 1 | 1 node, 1 worker | step 1");
    take(EventKind::Failure, kStart + 10s, 1);
    CHECK(line.text(kStart + 11s, told, use).ends_with(" | step 1 | stopped for 1 s"));
    take(EventKind::Formed, kStart + 11s, 2);
    line.begin(Generation(2), true, 1, 1);
    CHECK(line.text(kStart + 12s, WorkerMoments(), use) ==
          "ddprun: generation 2 | 1 node, 1 worker | restarting for 2 s");
    take(EventKind::FirstStep, kStart + 13s, 2);
    CHECK(line.text(kStart + 100s, told, use) ==
          "ddprun: generation 2 | 1 node, 1 worker | step 1 | 1 restart, the last 1 min 30 s ago");
    line.begin(Generation(3), false, 2, 2);
    CHECK(line.text(kStart + 100s, told, use).empty());
}
