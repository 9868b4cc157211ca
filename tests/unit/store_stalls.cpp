// Whose time is over, by a clock that the test sets.
#include <vector>

#include "rendezvous/store/core/stalls.hpp"
#include "tests/support/catch.hpp"

namespace ddprun::rdzv::store_test {

namespace {

using Kind = StoreDebt::Kind;

constexpr Instant kBegin{std::chrono::hours(1)};
const StoreClient kClient(7);
const StoreClient kOther(8);

std::vector<StoreClient> overdue_at(const StoreStalls& stalls, Instant now) {
    std::vector<StoreClient> clients;
    for (const StoreStalls::Overdue& overdue : stalls.overdue(now)) {
        clients.push_back(overdue.client);
    }
    return clients;
}

}  // namespace

TEST_CASE("each begun request has its own time") {
    const Limits limits;
    StoreStalls stalls(limits);
    StoreStalls::Stall stall;
    // Back to back: when one is complete, a part of the next has come with it.
    Instant now = kBegin;
    for (std::uint64_t request = 1; request <= 200; ++request) {
        stalls.owe(stall, kClient, {.kind = Kind::Request, .number = request}, now);
        now += Milliseconds(510);
        CAPTURE(request, (now - kBegin).count());
        REQUIRE(overdue_at(stalls, now).empty());
    }
    // The last one stops there.
    const Instant end = now - Milliseconds(510) + limits.store_stall_timeout;
    stalls.owe(stall, kClient, {.kind = Kind::Request, .number = 200}, now);
    CHECK(stalls.next_deadline() == end);
    CHECK(overdue_at(stalls, end - Milliseconds(1)).empty());
    CHECK(overdue_at(stalls, end) == std::vector<StoreClient>{kClient});
    CHECK(text_of(stalls.overdue(end).front().kind) == "its request is incomplete");
    stalls.owe(stall, kClient, {}, end);
    CHECK_FALSE(stalls.next_deadline().has_value());
}

TEST_CASE("a client that reads some of its replies has time anew, one that reads none has not") {
    const Limits limits;
    StoreStalls stalls(limits);
    StoreStalls::Stall reads;
    StoreStalls::Stall sleeps;
    Instant now = kBegin;
    for (std::uint64_t bytes = 0; bytes < 100; ++bytes) {
        stalls.owe(reads, kClient, {.kind = Kind::Replies, .number = bytes}, now);
        stalls.owe(sleeps, kOther, {.kind = Kind::Replies, .number = 0}, now);
        now += Milliseconds(1000);
    }
    CHECK(overdue_at(stalls, now) == std::vector<StoreClient>{kOther});
    CHECK(stalls.overdue(now).front().patience == limits.store_stall_timeout);
    stalls.owe(reads, kClient, {}, now);
    stalls.owe(sleeps, kOther, {}, now);
}

TEST_CASE("who has not said VALIDATE has less time than who stops later") {
    const Limits limits;
    StoreStalls stalls(limits);
    StoreStalls::Stall late;
    StoreStalls::Stall silent;
    stalls.owe(late, kClient, {.kind = Kind::Request, .number = 1}, kBegin);
    stalls.owe(silent, kOther, {.kind = Kind::Greeting}, kBegin);
    CHECK(stalls.next_deadline() == kBegin + limits.hello_timeout);
    const Instant now = kBegin + limits.hello_timeout;
    CHECK(overdue_at(stalls, now) == std::vector<StoreClient>{kOther});
    CHECK(stalls.overdue(now).front().patience == limits.hello_timeout);
    // A request that follows VALIDATE at once has the longer time.
    stalls.owe(silent, kOther, {.kind = Kind::Request, .number = 1}, now);
    CHECK(stalls.next_deadline() == kBegin + limits.store_stall_timeout);
    stalls.owe(silent, kOther, {}, now);
    stalls.owe(late, kClient, {}, now);
}

}  // namespace ddprun::rdzv::store_test
