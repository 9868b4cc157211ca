#include <algorithm>
#include <chrono>

#include "agent/memory/token_bucket.hpp"
#include "tests/support/catch.hpp"

using namespace ddprun;
using agent::TokenBucket;
using namespace std::chrono_literals;

TEST_CASE("a bucket gives no more than its burst and the rate") {
    constexpr std::uint64_t kRate = 1000;
    constexpr std::uint64_t kBurst = 100;
    TokenBucket bucket(kRate, kBurst);
    const Instant begin{};
    std::uint64_t given = 0;
    // Steps that no rate divides, and a pause that fills the bucket.
    for (Instant now = begin; now < begin + 3s; now += now == begin + 700us * 100 ? 900ms : 700us) {
        while (bucket.take(now, 30)) {
            given += 30;
        }
        const auto passed = std::chrono::duration<double>(now - begin).count();
        REQUIRE(static_cast<double>(given) <= kBurst + kRate * passed);
    }
    CHECK(given > 1900);
}

TEST_CASE("a bucket gives what is missing at the moment that it names, and not before") {
    TokenBucket bucket(1000, 100);
    const Instant begin{};
    REQUIRE(bucket.take(begin, 100));
    REQUIRE_FALSE(bucket.take(begin, 50));
    const Instant due = bucket.when(50);
    CHECK(due > begin + 49ms);
    CHECK_FALSE(bucket.take(due - 1ms, 50));
    CHECK(bucket.take(bucket.when(50), 50));
}
