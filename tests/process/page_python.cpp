// The agent reads what a worker in Python reports through the agent's own page.

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>

#include <fmt/format.h>

#include "agent/process/worker_page.hpp"
#include "tests/support/page_figures.hpp"
#include "tests/support/torch_python.hpp"

using namespace ddprun;
using namespace ddprun::test;

TEST_CASE("what a worker in Python tells is known to its agent, and what it is asked to it") {
    if (!is_torch_python_there()) {
        return;
    }
    const Result<std::unique_ptr<agent::WorkerPage>> page =
        agent::WorkerPage::create(Generation(7), 3, Instant::max());
    REQUIRE(page);
    const Instant before = std::chrono::steady_clock::now();
    (*page)->ask_to_stop(SIGTERM, before + std::chrono::seconds(30));
    const std::string path = fmt::format("/proc/{}/fd/{}", getpid(), (*page)->file());
    REQUIRE(run_torch_python("process/page_python.py", {path, "silent"}) == 0);
    // It has told its progress and asked nothing: it must be sent a signal.
    CHECK_FALSE((*page)->has_runtime(LocalRank(1)));
    CHECK((*page)->progress(LocalRank(1)) == std::uint64_t{4812});
    REQUIRE(run_torch_python("process/page_python.py", {path, "asks"}) == 75);
    CHECK((*page)->has_runtime(LocalRank(1)));
    CHECK_FALSE((*page)->has_runtime(LocalRank(0)));
    CHECK_FALSE((*page)->progress(LocalRank(2)).has_value());
    const PageFigures told = figures_on_page((*page)->file(), 3, 1);
    CHECK(told.main_ns >= on_page(before));
    CHECK(told.group_ready_ns >= told.main_ns);
    CHECK(told.resumed_ns >= told.group_ready_ns);
    CHECK(told.first_step_ns >= told.resumed_ns);
    CHECK(told.first_step_ns <= on_page(std::chrono::steady_clock::now()));
    CHECK(told.first_step == 4812);
    CHECK(told.samples == 48);
    CHECK(told.loss == 0.25);
    CHECK(figures_on_page((*page)->file(), 3, 0).main_ns == 0);
    CHECK((*page)->checkpoints(LocalRank(1)) == "/data/checkpoints");
    CHECK((*page)->checkpoints(LocalRank(0)).empty());
    const std::optional<agent::WorkerPage::Saves> saves = (*page)->saves(LocalRank(1));
    REQUIRE(saves);
    CHECK(saves->saved == 2);  // by two processes of the slot, one after the other
    CHECK(saves->step == 4812);
    CHECK(saves->stall_ns == 12'000'000);
    CHECK(saves->state_bytes == std::uint64_t{1} << 40);
    CHECK(saves->places == (kSavePlaceDisk | kSavePlaceMemory));
    CHECK(saves->in_time == 2);
    CHECK(saves->failed == 2);
    CHECK(saves->failed_step == 4813);
    CHECK(saves->failed_reason == "the disk is “full”");
    CHECK_FALSE((*page)->saves(LocalRank(0)));
}
