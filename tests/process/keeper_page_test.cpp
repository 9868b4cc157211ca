
#include <chrono>
#include <csignal>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "agent/daemon/shared_page.hpp"
#include "tests/process/keeper_fixture.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/result_text.hpp"
#include "worker_runtime/env/page.hpp"

namespace ddprun::agent {

namespace {

void no_sign(Generation /*generation*/, LocalRank /*worker*/, FatalSignal /*told*/) {}

/// Two workers of `generation`, as the Supervisor starts them.
StartWorkers two_workers(Generation generation) {
    StartWorkers start{.generation = generation,
                       .base_rank = Rank(0),
                       .publish_until = Instant::max(),
                       .workers = {}};
    for (int i = 0; i < 2; ++i) {
        WorkerSpec worker;
        worker.local_rank = LocalRank(i);
        start.workers.push_back(std::move(worker));
    }
    return start;
}

/// Worker `local_rank` of `start` opens the page that the keeper would hold.
worker::Page look(const SharedPage& page, const StartWorkers& start, int local_rank) {
    const UniqueFd file = page.file();
    Result<worker::Page> opened = worker::Page::open(fmt::format("/proc/self/fd/{}", file.get()),
                                                     start.generation, LocalRank(local_rank), 2);
    REQUIRE(opened);
    return std::move(*opened);
}

}  // namespace

TEST_CASE("a signal spares the workers that look at the page, if it spares any") {
    SharedPage page(no_sign, [] {});
    const StartWorkers start = two_workers(Generation(3));
    REQUIRE(page.make(start));
    const worker::Page looking = look(page, start, 1);
    page.carry_out(AskWorkersToLeave{.generation = Generation(3), .signal = SIGTERM});
    CHECK(looking.stop_request().has_value());
    SignalWorkers signal{.generation = Generation(3), .signal = SIGTERM, .spares_asked = true};
    CHECK_FALSE(page.is_spared(signal, LocalRank(0)));
    CHECK(page.is_spared(signal, LocalRank(1)));
    signal.spares_asked = false;
    CHECK_FALSE(page.is_spared(signal, LocalRank(1)));
}

TEST_CASE("what is meant for another generation does not reach the page") {
    SharedPage page(no_sign, [] {});
    const StartWorkers start = two_workers(Generation(3));
    REQUIRE(page.make(start));
    worker::Page looking = look(page, start, 1);
    looking.tell_progress(8);
    const Generation other(GENERATE(std::uint64_t{2}, std::uint64_t{4}));
    page.carry_out(AskWorkersToLeave{.generation = other, .signal = SIGTERM});
    page.carry_out(AllowPublishing{.generation = other, .until = Instant::min()});
    CHECK_FALSE(looking.stop_request().has_value());
    CHECK_FALSE(looking.is_isolated());
    CHECK_FALSE(page.progress(other, LocalRank(1)).has_value());
    CHECK(page.progress(Generation(3), LocalRank(1)) == std::uint64_t{8});
    page.carry_out(AllowPublishing{.generation = Generation(3), .until = Instant::min()});
    CHECK(looking.is_isolated());
}

TEST_CASE("workers may publish before the moment that their agent was told last") {
    const Instant now = std::chrono::steady_clock::now();
    const Instant past = now - std::chrono::seconds(1);
    const Instant future = now + std::chrono::hours(1);
    SharedPage page(no_sign, [] {});
    StartWorkers start = two_workers(Generation(1));
    // As values: the generator outlives this run of the test case.
    start.publish_until =
        GENERATE_COPY(as<Instant>{}, past, future, Instant::min(), Instant::max());
    REQUIRE(page.make(start));
    const worker::Page looking = look(page, start, 0);
    CHECK(looking.is_isolated() == (start.publish_until < now));
    for (const Instant until : {future, past, Instant::max(), Instant::min(), future}) {
        page.carry_out(AllowPublishing{.generation = Generation(1), .until = until});
        CHECK(looking.is_isolated() == (until < now));
    }
}

TEST_CASE("without a page every worker is signalled and nothing is known of its progress") {
    SharedPage page(no_sign, [] {});
    page.carry_out(AskWorkersToLeave{.generation = Generation(1), .signal = SIGTERM});
    page.carry_out(AllowPublishing{.generation = Generation(1), .until = Instant::max()});
    const SignalWorkers signal{
        .generation = Generation(1), .signal = SIGTERM, .spares_asked = true};
    CHECK_FALSE(page.is_spared(signal, LocalRank(0)));
    CHECK_FALSE(page.progress(Generation(1), LocalRank(0)).has_value());
}

TEST_CASE("a page that cannot be made is not there") {
    SharedPage page(no_sign, [] {});
    const StartWorkers start = two_workers(Generation(1));
    {
        const NoMoreFiles limit;
        const Result<void> made = page.make(start);
        REQUIRE_FALSE(made);
        CHECK(made.error().what.find("memfd") != std::string::npos);
    }
    CHECK_FALSE(page.file().is_open());
    REQUIRE(page.make(start));
    CHECK(page.file().is_open());
}

}  // namespace ddprun::agent
