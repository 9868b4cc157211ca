#include "agent/process/worker_page.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include "base/check.hpp"

namespace ddprun::agent {

namespace {

constexpr unsigned int kNoExecSeal = 8;  // MFD_NOEXEC_SEAL, unknown to old headers

UniqueFd unnamed_memory() {
    constexpr unsigned int kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    // Some machines allow no other memory than this; kernels before 6.3 do not know it.
    UniqueFd file(memfd_create("ddprun-workers", kFlags | kNoExecSeal));
    if (!file.is_open() && errno == EINVAL) {
        file.reset(memfd_create("ddprun-workers", kFlags));
    }
    return file;
}

std::int64_t nanoseconds_of(Instant instant) {
    using std::chrono::nanoseconds;
    return std::chrono::duration_cast<nanoseconds>(instant.time_since_epoch()).count();
}

/// To be taken by a worker, whose death the kernel then notes in it.
void make_life_lock(WorkerPageSlot& slot) {
    static_assert(sizeof(pthread_mutex_t) <= sizeof(slot.life_lock));
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(static_cast<pthread_mutex_t*>(static_cast<void*>(&slot.life_lock)),
                       &attributes);
    pthread_mutexattr_destroy(&attributes);
}

/// A worker may write any number of bytes: those that have no room are no text.
template <typename Room>
std::string text_of(const Room& room, std::uint32_t bytes) {
    std::string text(bytes > room.size() ? 0 : bytes, '\0');
    for (std::size_t i = 0; i < text.size(); ++i) {
        text[i] = room[i].load();
    }
    return text;
}

constexpr int kTries = 4;  // of a write that takes some nanoseconds, once a step or a save

}  // namespace

Result<std::unique_ptr<WorkerPage>> WorkerPage::create(Generation generation, int slot_count,
                                                       Instant publish_until) {
    const auto slots = static_cast<std::uint32_t>(slot_count);
    const std::size_t bytes = worker_page_bytes(slots);
    UniqueFd file = unnamed_memory();
    if (!file.is_open()) {
        return system_error(errno, "no memory to share with the workers (memfd_create)");
    }
    // A worker that made it shorter would let us die of SIGBUS.
    if (ftruncate(file.get(), static_cast<off_t>(bytes)) != 0 ||
        fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        return system_error(errno,
                            fmt::format("no {} bytes to share with the workers (memfd)", bytes));
    }
    void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (memory == MAP_FAILED) {
        return system_error(errno,
                            fmt::format("cannot map {} bytes to share with the workers", bytes));
    }
    auto* const header = std::construct_at(static_cast<WorkerPageHeader*>(memory));
    header->slot_count = slots;
    header->generation = generation.value();
    for (std::uint32_t i = 0; i < slots; ++i) {
        make_life_lock(*std::construct_at(worker_page_slots(header) + i));
        std::construct_at(worker_page_figures(header, slots) + i);
        std::construct_at(worker_page_checkpoints(header, slots) + i);
        std::construct_at(worker_page_pace(header, slots) + i);
        std::construct_at(worker_page_saves(header, slots) + i);
        std::construct_at(worker_page_reason(header, slots) + i);
    }
    auto page = std::make_unique<WorkerPage>(std::move(file), header);
    page->allow_publishing(publish_until);
    return page;
}

WorkerPage::WorkerPage(UniqueFd file, WorkerPageHeader* header)
    : file_(std::move(file)),
      header_(header),
      generation_(header->generation),
      slot_count_(static_cast<int>(header->slot_count)) {}

WorkerPage::~WorkerPage() {
    munmap(header_, worker_page_bytes(static_cast<std::uint32_t>(slot_count_)));
}

void WorkerPage::ask_to_stop(int signal, Instant deadline) {
    header_->stop_deadline_ns.store(nanoseconds_of(deadline));
    std::uint32_t nobody_asked = 0;
    header_->stop_signal.compare_exchange_strong(nobody_asked, static_cast<std::uint32_t>(signal));
}

void WorkerPage::allow_publishing(Instant until) {
    header_->publish_until_ns.store(until == Instant::max()
                                        ? kPublishForEver
                                        : std::max(nanoseconds_of(until), std::int64_t{0}));
}

bool WorkerPage::has_runtime(LocalRank local_rank) const {
    return slot(local_rank).has_runtime.load() != 0;
}

std::optional<std::uint64_t> WorkerPage::progress(LocalRank local_rank) const {
    const std::uint64_t step = slot(local_rank).progress.load();
    return step == kNoProgress ? std::nullopt : std::optional(step);
}

WorkerPage::Moments WorkerPage::moments(LocalRank local_rank) const {
    const WorkerPageFigures& figures =
        worker_page_figures(header_, static_cast<std::uint32_t>(slot_count_))[local_rank.value()];
    const auto instant = [](const std::atomic<std::int64_t>& time_ns) {
        const std::int64_t told = time_ns.load();
        return told <= 0 ? Instant::min() : Instant(std::chrono::nanoseconds(told));
    };
    return {.main = instant(figures.main_ns),
            .group_ready = instant(figures.group_ready_ns),
            .resumed = instant(figures.resumed_ns),
            .first_step = instant(figures.first_step_ns),
            .first_number = figures.first_step.load()};
}

std::optional<WorkerPage::Pace> WorkerPage::pace(LocalRank local_rank) const {
    (void)slot(local_rank);
    const auto slots = static_cast<std::uint32_t>(slot_count_);
    const WorkerPagePace& told = worker_page_pace(header_, slots)[local_rank.value()];
    for (int i = 0; i < kTries; ++i) {
        const std::uint64_t writes = told.writes.load();
        const Pace pace{
            .step = told.step.load(),
            .step_at = Instant(std::chrono::nanoseconds(told.step_ns.load())),
            .waited_ns = told.waited_ns.load(),
            .first_waited_ns = told.first_waited_ns.load(),
            .total_steps = told.total_steps.load(),
            .loss = worker_page_figures(header_, slots)[local_rank.value()].loss.load()};
        if (writes % 2 == 0 && told.writes.load() == writes) {
            return pace.step == kNoProgress ? std::nullopt : std::optional(pace);
        }
    }
    return std::nullopt;
}

Duration WorkerPage::checkpointing(LocalRank local_rank) const {
    (void)slot(local_rank);
    const WorkerPagePace& told =
        worker_page_pace(header_, static_cast<std::uint32_t>(slot_count_))[local_rank.value()];
    return std::chrono::nanoseconds(std::max(told.checkpointing_ns.load(), std::int64_t{0}));
}

std::optional<WorkerPage::Saves> WorkerPage::saves(LocalRank local_rank) const {
    (void)slot(local_rank);
    const auto slots = static_cast<std::uint32_t>(slot_count_);
    const WorkerPageSaves& told = worker_page_saves(header_, slots)[local_rank.value()];
    const WorkerPageReason& reason = worker_page_reason(header_, slots)[local_rank.value()];
    for (int i = 0; i < kTries; ++i) {
        const std::uint64_t writes = told.writes.load();
        const Saves saves{.saved = told.saved.load(),
                          .step = told.step.load(),
                          .saved_ns = told.saved_ns.load(),
                          .state_bytes = told.state_bytes.load(),
                          .stall_ns = told.stall_ns.load(),
                          .took_ns = told.took_ns.load(),
                          .places = told.places.load(),
                          .failed = told.failed.load(),
                          .failed_step = told.failed_step.load(),
                          .failed_ns = told.failed_ns.load(),
                          .failed_reason = text_of(reason.text, reason.text_bytes.load()),
                          .late = told.late.load(),
                          .in_time = told.in_time.load(),
                          .interval_ns = told.interval_ns.load()};
        if (writes % 2 == 0 && told.writes.load() == writes) {
            return writes == 0 ? std::nullopt : std::optional(saves);
        }
    }
    return std::nullopt;
}

std::uint64_t WorkerPage::save_writes(LocalRank local_rank) const {
    (void)slot(local_rank);
    return worker_page_saves(header_, static_cast<std::uint32_t>(slot_count_))[local_rank.value()]
        .writes.load();
}

std::uint64_t WorkerPage::samples(LocalRank local_rank) const {
    (void)slot(local_rank);
    return worker_page_figures(header_, static_cast<std::uint32_t>(slot_count_))[local_rank.value()]
        .samples.load();
}

std::string WorkerPage::checkpoints(LocalRank local_rank) const {
    (void)slot(local_rank);
    const WorkerPageCheckpoints& told = worker_page_checkpoints(
        header_, static_cast<std::uint32_t>(slot_count_))[local_rank.value()];
    const std::uint32_t bytes = told.path_bytes.load();
    const std::string path = text_of(told.path, bytes);
    // Not one that is half of another.
    const bool is_whole = told.path_bytes.load() == bytes;
    const bool is_path = path.starts_with('/') && path.find('\0') == std::string::npos;
    return is_whole && is_path ? path : std::string();
}

std::atomic<std::uint32_t>& WorkerPage::life_word(LocalRank local_rank) {
    return *static_cast<std::atomic<std::uint32_t>*>(
        static_cast<void*>(&slot(local_rank).life_lock));
}

FatalSignal WorkerPage::fatal_signal(LocalRank local_rank) const {
    return slot(local_rank).fatal_signal.load();
}

WorkerPageSlot& WorkerPage::slot(LocalRank local_rank) const {
    DDP_CHECK(local_rank.value() >= 0 && local_rank.value() < slot_count_, local_rank.value());
    return worker_page_slots(header_)[local_rank.value()];
}

}  // namespace ddprun::agent
