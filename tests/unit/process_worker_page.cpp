// Goal: agent and worker understand each other through the page, and neither can be harmed by it.
// Method: the agent's end and the worker's end of the same page, in one process.

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>

#include <fmt/format.h>

#include "agent/process/worker_page.hpp"
#include "base/os/unique_fd.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/page_figures.hpp"
#include "tests/support/result_text.hpp"
#include "worker_runtime/env/page.hpp"

namespace ddprun::agent {

namespace {

/// The path that the keeper gives a worker, for this process.
std::string path_of(const WorkerPage& page) {
    return fmt::format("/proc/self/fd/{}", page.file());
}

constexpr int kSlots = 3;

std::unique_ptr<WorkerPage> page_of(Generation generation) {
    Result<std::unique_ptr<WorkerPage>> made =
        WorkerPage::create(generation, kSlots, Instant::max());
    REQUIRE(made);
    return std::move(*made);
}

/// The error with which worker 0 refuses the page at `path`.
std::string refusal(const std::string& path, Generation generation, int local_world_size = kSlots) {
    const Result<worker::Page> opened =
        worker::Page::open(path, generation, LocalRank(0), local_world_size);
    REQUIRE_FALSE(opened);
    CHECK(opened.error().what.find('\n') == std::string::npos);
    return opened.error().what;
}

}  // namespace

TEST_CASE("what workers tell through the page is known to their agent, each for itself") {
    const std::unique_ptr<WorkerPage> page = page_of(Generation(7));
    CHECK(page->generation() == Generation(7));
    Result<worker::Page> second =
        worker::Page::open(path_of(*page), Generation(7), LocalRank(1), kSlots);
    REQUIRE(second);
    CHECK_FALSE(page->has_runtime(LocalRank(0)));
    CHECK(page->has_runtime(LocalRank(1)));
    CHECK_FALSE(page->has_runtime(LocalRank(2)));
    CHECK_FALSE(page->progress(LocalRank(1)).has_value());
    second->tell_progress(0);
    CHECK(page->progress(LocalRank(1)) == std::uint64_t{0});
    second->tell_progress(4812);
    CHECK(page->progress(LocalRank(1)) == std::uint64_t{4812});
    CHECK_FALSE(page->progress(LocalRank(2)).has_value());
}

TEST_CASE("a step is told whole after a process of this slot was killed while it told one") {
    const std::unique_ptr<WorkerPage> page = page_of(Generation(7));
    const std::size_t bytes = worker_page_bytes(kSlots);
    void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, page->file(), 0);
    REQUIRE(memory != MAP_FAILED);
    worker_page_pace(static_cast<WorkerPageHeader*>(memory), kSlots)[1].writes = 3;
    REQUIRE(munmap(memory, bytes) == 0);
    CHECK_FALSE(page->pace(LocalRank(1)).has_value());
    Result<worker::Page> next =
        worker::Page::open(path_of(*page), Generation(7), LocalRank(1), kSlots);
    REQUIRE(next);
    next->tell_progress(4812);
    const std::optional<WorkerPage::Pace> told = page->pace(LocalRank(1));
    REQUIRE(told);
    CHECK(told->step == 4812);
}

namespace {

/// Steps that a signal's handler reports while the main thread reports others. The handler comes
/// between any two instructions; another thread would come there once in millions of steps.
struct Interruptions {
    static constexpr std::size_t kCount = 2'000;
    struct Told {
        Instant begun, ended;
    };
    worker::Page* page = nullptr;
    std::array<Told, kCount> told;  ///< step 2 n + 1 is told by interruption n
    std::atomic<std::size_t> count = 0;
};
Interruptions* interruptions = nullptr;

void tell_in_between(int /*signal*/) {
    const std::size_t number = interruptions->count;
    if (number < Interruptions::kCount) {
        Interruptions::Told& own = interruptions->told[number];
        own.begun = std::chrono::steady_clock::now();
        interruptions->page->tell_progress(static_cast<std::int64_t>(2 * number + 1));
        own.ended = std::chrono::steady_clock::now();
        interruptions->count = number + 1;
    }
}

}  // namespace

TEST_CASE("a step is told whole whatever other step is told meanwhile") {
    const std::unique_ptr<WorkerPage> page = page_of(Generation(7));
    Result<worker::Page> telling =
        worker::Page::open(path_of(*page), Generation(7), LocalRank(1), kSlots);
    REQUIRE(telling);
    Interruptions between;
    between.page = &*telling;
    interruptions = &between;
    struct sigaction action {};
    action.sa_handler = tell_in_between;
    struct sigaction before {};
    REQUIRE(sigaction(SIGUSR1, &action, &before) == 0);
    std::atomic<std::size_t> steps = 0;
    std::thread interrupter([&between, &steps, teller = pthread_self()] {
        // After some steps each, else one would follow upon the other at the same place.
        std::size_t done = 0;
        while (between.count < Interruptions::kCount) {
            if (between.count >= done && steps > 10 * done) {
                (void)pthread_kill(teller, SIGUSR1);
                ++done;
            } else {
                std::this_thread::yield();
            }
        }
    });
    std::size_t torn = 0;
    while (between.count < Interruptions::kCount) {
        const std::uint64_t step = 2 * steps;
        const Instant begun = std::chrono::steady_clock::now();
        telling->tell_progress(static_cast<std::int64_t>(step));
        const Instant ended = std::chrono::steady_clock::now();
        const std::optional<WorkerPage::Pace> pace = page->pace(LocalRank(1));
        if (pace) {
            const bool is_own = pace->step == step;
            const Interruptions::Told its =
                is_own ? Interruptions::Told{begun, ended} : between.told.at(pace->step / 2);
            torn += its.begun <= pace->step_at && pace->step_at <= its.ended ? 0 : 1;
        }
        ++steps;
    }
    interrupter.join();
    REQUIRE(sigaction(SIGUSR1, &before, nullptr) == 0);
    CHECK(torn == 0);
    telling->tell_progress(7);
    CHECK(page->pace(LocalRank(1)).value().step == 7);
}

TEST_CASE("times, samples and loss that a worker tells are on the page") {
    const std::unique_ptr<WorkerPage> page = page_of(Generation(7));
    const Instant before = std::chrono::steady_clock::now();
    Result<worker::Page> looking =
        worker::Page::open(path_of(*page), Generation(7), LocalRank(2), kSlots);
    REQUIRE(looking);
    const test::PageFigures first = test::figures_on_page(page->file(), kSlots, 2);
    CHECK(first.main_ns >= test::on_page(before));
    CHECK(first.group_ready_ns == 0);
    CHECK(first.resumed_ns == 0);
    CHECK(first.first_step_ns == 0);
    CHECK(first.first_step == kNoProgress);
    CHECK(first.samples == 0);
    CHECK(std::isnan(first.loss));

    looking->tell_group_ready(before + std::chrono::seconds(1));
    looking->tell_resumed(before + std::chrono::seconds(2));
    looking->tell_progress(10, 32, 2.5);
    const test::PageFigures second = test::figures_on_page(page->file(), kSlots, 2);
    CHECK(second.group_ready_ns == test::on_page(before + std::chrono::seconds(1)));
    CHECK(second.resumed_ns == test::on_page(before + std::chrono::seconds(2)));
    CHECK(second.first_step_ns >= test::on_page(before));
    looking->tell_group_ready(before + std::chrono::seconds(9));
    looking->tell_progress(11, 16);
    const test::PageFigures third = test::figures_on_page(page->file(), kSlots, 2);
    CHECK(third.group_ready_ns == second.group_ready_ns);
    CHECK(third.first_step_ns == second.first_step_ns);
    CHECK(third.first_step == 10);
    const WorkerPage::Moments moments = page->moments(LocalRank(2));
    CHECK(test::on_page(moments.first_step) == third.first_step_ns);
    CHECK(moments.first_number == 10);
    CHECK(page->moments(LocalRank(1)).first_number == kNoProgress);
    CHECK(third.samples == 48);
    CHECK(third.loss == 2.5);
    CHECK(third.main_ns == first.main_ns);
    CHECK(test::figures_on_page(page->file(), kSlots, 1).main_ns == 0);
}

TEST_CASE("where a worker's checkpoints are is told as a path from the root, and only as one") {
    const std::unique_ptr<WorkerPage> page = page_of(Generation(7));
    Result<worker::Page> looking =
        worker::Page::open(path_of(*page), Generation(7), LocalRank(1), kSlots);
    REQUIRE(looking);
    CHECK(page->checkpoints(LocalRank(1)).empty());
    looking->tell_checkpoints("/data/run-7/checkpoints");
    CHECK(page->checkpoints(LocalRank(1)) == "/data/run-7/checkpoints");
    CHECK(page->checkpoints(LocalRank(0)).empty());
    CHECK(page->checkpoints(LocalRank(2)).empty());
    const std::string longest = "/" + std::string(kCheckpointsPathBytesMax - 1, 'x');
    looking->tell_checkpoints(longest);
    CHECK(page->checkpoints(LocalRank(1)) == longest);
    looking->tell_checkpoints(longest + "x");
    CHECK(page->checkpoints(LocalRank(1)) == longest);
    looking->tell_checkpoints("/short");
    CHECK(page->checkpoints(LocalRank(1)) == "/short");
    for (const std::string& wrong :
         {std::string("data"), std::string("/a\0b", 4), std::string(), std::string("-rf")}) {
        looking->tell_checkpoints(wrong);
        CHECK(page->checkpoints(LocalRank(1)).empty());
    }
    // The agent ignores a length above the limit, even if a worker writes it.
    const std::uint32_t bytes = 1021;
    const off_t at = 64 + 192 * kSlots + 1024;
    REQUIRE(pwrite(page->file(), &bytes, sizeof(bytes), at) == sizeof(bytes));
    CHECK(page->checkpoints(LocalRank(1)).empty());
}

TEST_CASE("a page of version 5 has no room for where checkpoints are") {
    const UniqueFd file(memfd_create("test", MFD_CLOEXEC));
    REQUIRE(file.is_open());
    const auto bytes = static_cast<off_t>(worker_page_bytes(kSlots, 5));
    CHECK(bytes == 64 + 192 * kSlots);
    REQUIRE(ftruncate(file.get(), bytes) == 0);
    WorkerPageHeader header;
    header.version = 5;
    header.slot_count = kSlots;
    header.generation = 5;
    REQUIRE(write(file.get(), &header, sizeof(header)) == sizeof(header));
    const std::string path = fmt::format("/proc/self/fd/{}", file.get());
    Result<worker::Page> looking = worker::Page::open(path, Generation(5), LocalRank(2), kSlots);
    REQUIRE(looking);
    looking->tell_checkpoints("/data");
    looking->tell_progress(1);
    header.version = 6;
    REQUIRE(pwrite(file.get(), &header, sizeof(header), 0) == sizeof(header));
    CHECK(refusal(path, Generation(5)).find("version 6") != std::string::npos);
}

TEST_CASE("a page of version 3 is used without what version 4 has added") {
    const std::uint32_t slots = kSlots;
    const UniqueFd file(memfd_create("test", MFD_CLOEXEC));
    REQUIRE(file.is_open());
    const std::size_t bytes = worker_page_bytes(slots, 3);
    REQUIRE(ftruncate(file.get(), static_cast<off_t>(bytes)) == 0);
    WorkerPageHeader header;
    header.version = 3;
    header.slot_count = slots;
    header.generation = 5;
    REQUIRE(write(file.get(), &header, sizeof(header)) == sizeof(header));
    const std::string path = fmt::format("/proc/self/fd/{}", file.get());
    Result<worker::Page> looking = worker::Page::open(path, Generation(5), LocalRank(1), kSlots);
    REQUIRE(looking);
    looking->tell_group_ready(std::chrono::steady_clock::now());
    looking->tell_progress(4812, 32, 2.5);
    std::uint64_t step = 0;
    REQUIRE(pread(file.get(), &step, sizeof(step), 64 + 128 + 8) == sizeof(step));
    CHECK(step == 4812);
    // A newer one has at least what the newest one has that is known.
    header.version = 11;
    REQUIRE(pwrite(file.get(), &header, sizeof(header), 0) == sizeof(header));
    CHECK(refusal(path, Generation(5)).find("version 11") != std::string::npos);
    REQUIRE(ftruncate(file.get(), static_cast<off_t>(worker_page_bytes(slots, 11) + 4096)) == 0);
    CHECK(worker::Page::open(path, Generation(5), LocalRank(1), kSlots));
}

TEST_CASE("a save is told once its stall and its end are known, in either order") {
    const std::unique_ptr<WorkerPage> page = page_of(Generation(7));
    Result<worker::Page> leading =
        worker::Page::open(path_of(*page), Generation(7), LocalRank(1), kSlots);
    REQUIRE(leading);
    CHECK_FALSE(page->saves(LocalRank(1)).has_value());
    const bool ends_first = GENERATE(false, true);
    const worker::SaveEnd end{.is_complete = true, .bytes = 1'200'000'000};
    const Instant before = std::chrono::steady_clock::now();
    leading->tell_save_asked(false);
    leading->tell_save_begun(1200);
    const std::uint32_t bell = page->bell();
    if (ends_first) {
        leading->tell_save_ended(end);
    } else {
        leading->tell_save_stalled(std::chrono::milliseconds(12));
    }
    CHECK(page->saves(LocalRank(1)).value().saved == 0);
    CHECK(page->bell() == bell);
    const Instant one_is_told = std::chrono::steady_clock::now();
    if (ends_first) {
        leading->tell_save_stalled(std::chrono::milliseconds(12));
    } else {
        leading->tell_save_ended(end);
    }
    CHECK(page->bell() == bell + 1);
    const WorkerPage::Saves saves = page->saves(LocalRank(1)).value();
    CHECK(saves.saved == 1);
    CHECK(saves.step == 1200);
    CHECK(saves.state_bytes == 1'200'000'000);
    CHECK(saves.stall_ns == 12'000'000);
    CHECK(saves.places == kSavePlaceDisk);
    CHECK(saves.saved_ns >= test::on_page(before));
    CHECK((saves.saved_ns <= test::on_page(one_is_told)) == ends_first);
    CHECK(saves.took_ns <= saves.saved_ns - test::on_page(before));
    CHECK(saves.failed == 0);
    CHECK(saves.in_time == 1);
    // A second stall or end belongs to no save.
    leading->tell_save_stalled(std::chrono::seconds(1));
    leading->tell_save_ended(end);
    CHECK(page->saves(LocalRank(1)).value().saved == 1);
    CHECK_FALSE(page->saves(LocalRank(0)).has_value());
    CHECK_FALSE(page->saves(LocalRank(2)).has_value());
}

TEST_CASE(
    "saves that fail and those that are asked for too early are counted, and wake the agent") {
    const std::unique_ptr<WorkerPage> page = page_of(Generation(7));
    Result<worker::Page> leading =
        worker::Page::open(path_of(*page), Generation(7), LocalRank(0), kSlots);
    REQUIRE(leading);
    const std::uint32_t bell = page->bell();
    leading->tell_save_asked(false);
    leading->tell_save_begun(5);
    leading->tell_save_stalled(Duration::zero());
    leading->tell_save_asked(true);
    CHECK(page->bell() == bell + 1);
    leading->tell_save_asked(true);
    WorkerPage::Saves saves = page->saves(LocalRank(0)).value();
    CHECK(saves.late == 2);
    CHECK(saves.in_time == 0);
    leading->tell_save_ended({.is_complete = false});
    CHECK(page->bell() == bell + 3);
    leading->tell_save_asked(false);
    saves = page->saves(LocalRank(0)).value();
    CHECK(saves.failed == 1);
    CHECK(saves.failed_step == 5);
    CHECK(saves.failed_ns > 0);
    CHECK(saves.saved == 0);
    CHECK(saves.late == 0);
    CHECK(saves.in_time == 1);
    CHECK(saves.interval_ns > 0);
    CHECK(page->bell() == bell + 3);
}

TEST_CASE("a save is read whole while others are told") {
    const std::unique_ptr<WorkerPage> page = page_of(Generation(7));
    Result<worker::Page> leading =
        worker::Page::open(path_of(*page), Generation(7), LocalRank(1), kSlots);
    REQUIRE(leading);
    constexpr std::int64_t kSaves = 20'000;
    std::atomic<bool> is_done = false;
    std::thread teller([&] {
        for (std::int64_t step = 1; step <= kSaves; ++step) {
            leading->tell_save_begun(step);
            leading->tell_save_stalled(std::chrono::nanoseconds(step));
            leading->tell_save_ended(
                {.is_complete = true, .bytes = static_cast<std::uint64_t>(step)});
        }
        is_done = true;
    });
    std::size_t torn = 0;
    while (!is_done) {
        if (const std::optional<WorkerPage::Saves> saves = page->saves(LocalRank(1));
            saves && saves->saved > 0) {
            const bool is_whole = saves->step == saves->saved &&
                                  saves->state_bytes == saves->saved &&
                                  saves->stall_ns == static_cast<std::int64_t>(saves->saved);
            torn += is_whole ? 0 : 1;
        }
    }
    teller.join();
    CHECK(torn == 0);
    CHECK(page->saves(LocalRank(1)).value().saved == kSaves);
}

TEST_CASE("the reason why a save has failed is told, and cut between two characters") {
    const std::unique_ptr<WorkerPage> page = page_of(Generation(7));
    Result<worker::Page> leading =
        worker::Page::open(path_of(*page), Generation(7), LocalRank(1), kSlots);
    REQUIRE(leading);
    const auto told = [&](const std::string& why) {
        leading->tell_save_begun(1);
        leading->tell_save_stalled(Duration::zero());
        leading->tell_save_ended({.is_complete = false, .why = why});
        return page->saves(LocalRank(1)).value().failed_reason;
    };
    CHECK(told("rank 1: the disk is full") == "rank 1: the disk is full");
    CHECK(told("").empty());
    const std::string longest(kSaveReasonBytesMax, 'x');
    CHECK(told(longest) == longest);
    CHECK(told(longest + "x") == std::string(kSaveReasonBytesMax - 3, 'x') + "…");
    // The last `ä` that would begin within the bound ends behind it.
    const std::string before(kSaveReasonBytesMax - 4, 'x');
    CHECK(told(before + "äöü") == before + "…");
    CHECK(page->saves(LocalRank(1)).value().failed == 5);
    // The agent ignores a length above the limit, even if a worker writes it.
    const std::uint32_t bytes = kSaveReasonBytesMax + 1;
    const off_t at = 64 + 1408 * kSlots + 512;
    REQUIRE(pwrite(page->file(), &bytes, sizeof(bytes), at) == sizeof(bytes));
    CHECK(page->saves(LocalRank(1)).value().failed_reason.empty());
}

TEST_CASE("pages of versions 8 and 9 are used without what later versions have added") {
    CHECK(worker_page_bytes(kSlots, 8) == 64 + 1280 * kSlots);
    CHECK(worker_page_bytes(kSlots, 9) == 64 + 1408 * kSlots);
    CHECK(worker_page_bytes(kSlots, 10) == 64 + 1920 * kSlots);
    const std::uint32_t version = GENERATE(8, 9);
    const auto size = static_cast<off_t>(worker_page_bytes(kSlots, version));
    const UniqueFd file(memfd_create("test", MFD_CLOEXEC));
    REQUIRE(file.is_open());
    REQUIRE(ftruncate(file.get(), size) == 0);
    WorkerPageHeader header;
    header.version = version;
    header.slot_count = kSlots;
    header.generation = 5;
    REQUIRE(write(file.get(), &header, sizeof(header)) == sizeof(header));
    const std::string path = fmt::format("/proc/self/fd/{}", file.get());
    Result<worker::Page> leading =
        worker::Page::open(path, Generation(5), LocalRank(kSlots - 1), kSlots);
    REQUIRE(leading);
    leading->tell_save_asked(true);
    leading->tell_save_begun(1);
    leading->tell_save_stalled(Duration::zero());
    leading->tell_save_ended({.is_complete = false, .why = "the disk is full"});
    struct stat status {};
    REQUIRE(fstat(file.get(), &status) == 0);
    CHECK(status.st_size == size);
    std::uint64_t failed = 0;
    const off_t at = 64 + 1280 * kSlots + 128 * (kSlots - 1) + 80;
    const ssize_t read = pread(file.get(), &failed, sizeof(failed), at);
    CHECK(read == (version == 9 ? ssize_t{sizeof(failed)} : 0));
    CHECK(failed == (version == 9 ? 1 : 0));
}

TEST_CASE("what the agent tells through the page is known to all workers, the later ones too") {
    const std::unique_ptr<WorkerPage> page = page_of(Generation(1));
    const Result<worker::Page> first =
        worker::Page::open(path_of(*page), Generation(1), LocalRank(0), kSlots);
    REQUIRE(first);
    CHECK_FALSE(first->is_isolated());
    CHECK_FALSE(first->stop_request().has_value());
    page->allow_publishing(Instant::min());
    const Instant deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    page->ask_to_stop(SIGINT, deadline);
    const Result<worker::Page> late =
        worker::Page::open(path_of(*page), Generation(1), LocalRank(2), kSlots);
    REQUIRE(late);
    for (const Result<worker::Page>* looking : {&first, &late}) {
        CHECK((*looking)->is_isolated());
        REQUIRE((*looking)->stop_request().has_value());
        CHECK((*looking)->stop_request()->signal == SIGINT);
        CHECK((*looking)->stop_request()->deadline == deadline);
    }
    page->allow_publishing(Instant::max());
    CHECK_FALSE(first->is_isolated());
}

TEST_CASE("a worker may publish while its own clock is before what the page says") {
    const std::unique_ptr<WorkerPage> page = page_of(Generation(1));
    const Result<worker::Page> looking =
        worker::Page::open(path_of(*page), Generation(1), LocalRank(0), kSlots);
    REQUIRE(looking);
    const Instant now = std::chrono::steady_clock::now();
    page->allow_publishing(now);
    CHECK(looking->is_isolated());
    page->allow_publishing(now - std::chrono::hours(1));
    CHECK(looking->is_isolated());
    page->allow_publishing(now + std::chrono::hours(1));
    CHECK_FALSE(looking->is_isolated());
    page->allow_publishing(Instant::min());
    CHECK(looking->is_isolated());
    page->allow_publishing(Instant::max());
    CHECK_FALSE(looking->is_isolated());
    // A clock that has just started.
    page->allow_publishing(Instant{});
    CHECK(looking->is_isolated());
}

TEST_CASE("a page starts with until when its workers may publish") {
    const Instant past = std::chrono::steady_clock::now();
    for (const Instant until : {past, past + std::chrono::hours(1)}) {
        const Result<std::unique_ptr<WorkerPage>> page =
            WorkerPage::create(Generation(1), kSlots, until);
        REQUIRE(page);
        const Result<worker::Page> looking =
            worker::Page::open(path_of(**page), Generation(1), LocalRank(0), kSlots);
        REQUIRE(looking);
        CHECK(looking->is_isolated() == (until == past));
    }
}

TEST_CASE("workers that are asked again find the new deadline and the first signal") {
    const std::unique_ptr<WorkerPage> page = page_of(Generation(1));
    const Result<worker::Page> looking =
        worker::Page::open(path_of(*page), Generation(1), LocalRank(0), kSlots);
    REQUIRE(looking);
    const Instant deadline = std::chrono::steady_clock::now();
    page->ask_to_stop(SIGINT, deadline + std::chrono::seconds(30));
    page->ask_to_stop(SIGTERM, deadline);
    REQUIRE(looking->stop_request().has_value());
    CHECK(looking->stop_request()->signal == SIGINT);
    CHECK(looking->stop_request()->deadline == deadline);
}

TEST_CASE(
    "a page that is not this generation's is refused with a line, and nothing is said in it") {
    const std::unique_ptr<WorkerPage> page = page_of(Generation(2));
    CHECK(refusal(path_of(*page), Generation(3)).find("generation 2") != std::string::npos);
    CHECK(refusal(path_of(*page), Generation(2), kSlots - 1).find("3 workers") !=
          std::string::npos);
    CHECK(refusal(path_of(*page), Generation(2), kSlots + 1).find("bytes") != std::string::npos);
    CHECK_FALSE(page->has_runtime(LocalRank(0)));
}

TEST_CASE("what is no page is refused with a line") {
    const UniqueFd file(memfd_create("test", MFD_CLOEXEC));
    REQUIRE(file.is_open());
    const std::string path = fmt::format("/proc/self/fd/{}", file.get());
    CHECK(refusal(path, Generation(1)).find("0 bytes") != std::string::npos);
    REQUIRE(ftruncate(file.get(), 4096) == 0);
    CHECK(refusal(path, Generation(1)).find("version 0") != std::string::npos);
    CHECK(refusal("/nonexistent/page", Generation(1)).find("/nonexistent/page") !=
          std::string::npos);
}

TEST_CASE("nothing is left of a page once its agent has let go of it") {
    std::unique_ptr<WorkerPage> page = page_of(Generation(1));
    const std::string path = path_of(*page);
    Result<worker::Page> looking = worker::Page::open(path, Generation(1), LocalRank(0), kSlots);
    REQUIRE(looking);
    page.reset();
    CHECK(access(path.c_str(), F_OK) != 0);
    // A worker that has the page mapped can still use it.
    looking->tell_progress(1);
    CHECK_FALSE(looking->is_isolated());
}

TEST_CASE("a worker can neither make the page shorter nor longer nor forbid others to write") {
    const std::unique_ptr<WorkerPage> page = page_of(Generation(1));
    const UniqueFd file(open(path_of(*page).c_str(), O_RDWR | O_CLOEXEC));
    REQUIRE(file.is_open());
    CHECK(ftruncate(file.get(), 0) != 0);
    CHECK(errno == EPERM);
    CHECK(ftruncate(file.get(), 1 << 20) != 0);
    CHECK(fcntl(file.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE) != 0);
    page->allow_publishing(Instant::min());
}

TEST_CASE("the page's descriptor is not inherited by programs that the agent starts") {
    const std::unique_ptr<WorkerPage> page = page_of(Generation(1));
    const std::string number = path_of(*page).substr(path_of(*page).rfind('/') + 1);
    const int flags = fcntl(std::stoi(number), F_GETFD);
    REQUIRE(flags >= 0);
    CHECK((flags & FD_CLOEXEC) != 0);
}

}  // namespace ddprun::agent
