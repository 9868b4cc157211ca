// Goal: a run's events are counted: restarts by cause, how long each phase of a restart took.

#include "rendezvous/events/event_counts.hpp"

#include <string>

#include "tests/support/catch.hpp"

namespace ddprun::rdzv {
namespace {

struct Stream {
    void tell(EventKind kind, std::int64_t at_ms, std::vector<EventField> fields = {}) {
        counts.take({.kind = kind,
                     .at = Instant{} + Milliseconds(at_ms),
                     .generation = Generation(1),
                     .fields = std::move(fields)});
    }
    [[nodiscard]] double took(const std::string& phase) const {
        const auto found = counts.phases().find(phase);
        return found == counts.phases().end() ? -1 : found->second.sum_seconds();
    }

    EventCounts counts;
};

TEST_CASE("a restart is counted by its cause, and its phases one after the other") {
    Stream stream;
    stream.tell(EventKind::Joined, 0);
    stream.tell(EventKind::Formed, 100);
    stream.tell(EventKind::FirstStep, 2'000);
    CHECK(stream.counts.restarts().empty());
    CHECK(stream.counts.phases().empty());
    stream.tell(EventKind::Failure, 10'000);
    stream.tell(EventKind::Stop, 10'002, {{"cause", std::string("failure")}});
    stream.tell(EventKind::Empty, 10'030);
    stream.tell(EventKind::Empty, 10'050);
    stream.tell(EventKind::Formed, 10'060);
    stream.tell(EventKind::Spawned, 10'061);
    stream.tell(EventKind::Spawned, 10'099);
    stream.tell(EventKind::FirstStep, 11'061);
    stream.tell(EventKind::FirstStep, 12'000);
    CHECK(stream.counts.restarts() == std::map<std::string, std::uint64_t>{{"failure", 1}});
    CHECK(stream.counts.failures() == 1);
    CHECK(stream.took("stop") == Approx(0.050));
    CHECK(stream.took("form") == Approx(0.010));
    CHECK(stream.took("spawn") == Approx(0.001));
    CHECK(stream.took("first_step") == Approx(1.0));
    CHECK(stream.took("connect") == -1);
}

TEST_CASE("a generation that a lost node ends without an order counts as lost") {
    Stream stream;
    stream.tell(EventKind::Formed, 0);
    stream.tell(EventKind::LinkDown, 500);
    stream.tell(EventKind::Lost, 1'000);
    stream.tell(EventKind::Formed, 1'500);
    stream.tell(EventKind::Refused, 1'600);
    stream.tell(EventKind::HeldUp, 1'700);
    CHECK(stream.counts.restarts() == std::map<std::string, std::uint64_t>{{"lost", 1}});
    CHECK(stream.counts.nodes_lost() == 1);
    CHECK(stream.counts.cut_off() == 1);
    CHECK(stream.counts.refusals() == 1);
    CHECK(stream.counts.hold_ups() == 1);
    CHECK(stream.took("stop") == Approx(0.0));
    CHECK(stream.took("form") == Approx(0.5));
}

TEST_CASE("what took as long as a bound is within it") {
    DurationHistogram histogram;
    for (const int took_ms : {1, 5, 5, 700, 3'600'000}) {
        histogram.observe(Milliseconds(took_ms));
    }
    histogram.observe(Milliseconds(-3));  // clocks of two machines
    CHECK(histogram.count() == 6);
    CHECK(histogram.at_most(0) == 2);
    CHECK(histogram.at_most(1) == 4);
    CHECK(histogram.at_most(DurationHistogram::kBoundsSeconds.size() - 1) == 5);
    CHECK(histogram.sum_seconds() == Approx(3600.711));
}

}  // namespace
}  // namespace ddprun::rdzv
