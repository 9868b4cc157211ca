#include "worker_runtime/env/page.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>

#include <fmt/format.h>

#include "base/os/unique_fd.hpp"
#include "base/utf8.hpp"
#include "worker_runtime/env/life_lock.hpp"

namespace ddprun::worker {

namespace {

/// Stands in for a missing page: no process reads its values, and it asks for nothing.
struct NoPage {
    WorkerPageHeader header{.publish_until_ns{kPublishForEver}};
    WorkerPageSlot slot;
    WorkerPageFigures figures;
    WorkerPageCheckpoints checkpoints;
    WorkerPagePace pace;
    WorkerPageSaves saves;
    WorkerPageReason reason;
};
NoPage no_page;

std::int64_t on_page(Duration time) {
    return std::chrono::nanoseconds(time).count();
}

void stamp(std::atomic<std::int64_t>& time_ns, Instant now) {
    std::int64_t not_yet = 0;
    time_ns.compare_exchange_strong(not_yet, on_page(now.time_since_epoch()));
}

/// `text` fits into `room`.
template <typename Room>
void store_text(std::string_view text, Room& room, std::atomic<std::uint32_t>& bytes) {
    for (std::size_t i = 0; i < text.size(); ++i) {
        room[i].store(text[i], std::memory_order_relaxed);
    }
    bytes.store(static_cast<std::uint32_t>(text.size()));
}

}  // namespace

Page::Page()
    : header_(&no_page.header),
      slot_(&no_page.slot),
      figures_(&no_page.figures),
      checkpoints_(&no_page.checkpoints),
      pace_(&no_page.pace),
      saves_(&no_page.saves),
      reason_(&no_page.reason),
      save_(std::make_unique<SaveUnderWay>()) {}

Result<Page> Page::open(const std::string& path, Generation generation, LocalRank local_rank,
                        int local_world_size) {
    const UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (!file.is_open()) {
        return system_error(errno, fmt::format("cannot open the agent's page {}", path));
    }
    const auto slot_count = static_cast<std::uint32_t>(local_world_size);
    const std::size_t least = worker_page_bytes(slot_count, kWorkerPageVersionMin);
    struct stat status {};
    if (fstat(file.get(), &status) != 0) {
        return system_error(errno, fmt::format("cannot look at the agent's page {}", path));
    }
    if (status.st_size < 0 || static_cast<std::size_t>(status.st_size) < least) {
        return Error{ErrorCode::BadMessage,
                     fmt::format("the agent's page {} has {} bytes, {} workers need {}", path,
                                 status.st_size, local_world_size, least)};
    }
    const auto bytes = static_cast<std::size_t>(status.st_size);
    void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (memory == MAP_FAILED) {
        return system_error(errno, fmt::format("cannot map the agent's page {}", path));
    }
    Page page;
    page.header_ = static_cast<WorkerPageHeader*>(memory);
    const WorkerPageHeader& header = *page.header_;
    if (header.magic != kWorkerPageMagic || header.version < kWorkerPageVersionMin ||
        header.slot_count != slot_count || header.generation != generation.value() ||
        bytes < worker_page_bytes(slot_count, header.version)) {
        Error wrong{
            ErrorCode::BadMessage,
            fmt::format("the agent's page {} is of version {}, generation {}, {} workers, {} "
                        "bytes; expected version {} or newer, generation {}, {} workers",
                        path, header.version, header.generation, header.slot_count, bytes,
                        kWorkerPageVersionMin, generation.value(), local_world_size)};
        munmap(memory, bytes);
        return wrong;
    }
    page.slot_ = worker_page_slots(page.header_) + local_rank.value();
    if (header.version >= kWorkerPageVersionWithFigures) {
        page.figures_ = worker_page_figures(page.header_, slot_count) + local_rank.value();
        stamp(page.figures_->main_ns, std::chrono::steady_clock::now());
    }
    if (header.version >= kWorkerPageVersionWithCheckpoints) {
        page.checkpoints_ = worker_page_checkpoints(page.header_, slot_count) + local_rank.value();
    }
    if (header.version >= kWorkerPageVersionWithPace) {
        page.pace_ = worker_page_pace(page.header_, slot_count) + local_rank.value();
    }
    if (header.version >= kWorkerPageVersionWithSaves) {
        page.saves_ = worker_page_saves(page.header_, slot_count) + local_rank.value();
    }
    if (header.version >= kWorkerPageVersionWithReason) {
        page.reason_ = worker_page_reason(page.header_, slot_count) + local_rank.value();
    }
    page.slot_->has_runtime.store(1);
    // ddprun-preload.so may hold it already.
    (void)hold_life_lock({.header = page.header_, .slot = page.slot_});
    return page;
}

bool Page::is_isolated() const {
    const std::chrono::nanoseconds until(header_->publish_until_ns.load());
    return std::chrono::steady_clock::now().time_since_epoch() >= until;
}

std::optional<StopRequest> Page::stop_request() const {
    const std::uint32_t signal = header_->stop_signal.load();
    if (signal == 0) {
        return std::nullopt;
    }
    return StopRequest{
        .signal = static_cast<int>(signal),
        .deadline = Instant(std::chrono::nanoseconds(header_->stop_deadline_ns.load()))};
}

void Page::tell_progress(std::int64_t step, std::int64_t samples, std::optional<double> loss) {
    slot_->progress.store(static_cast<std::uint64_t>(step));
    figures_->samples.fetch_add(static_cast<std::uint64_t>(samples));
    if (loss.has_value()) {
        figures_->loss.store(*loss);
    }
    if (!is_telling_.test_and_set()) {
        tell_pace(static_cast<std::uint64_t>(step));
        is_telling_.clear();
    }
}

void Page::tell_pace(std::uint64_t step) noexcept {
    const Instant now = std::chrono::steady_clock::now();
    const bool is_first = figures_->first_step_ns.load() == 0;
    const std::int64_t waited = pace_->waiting_ns.load();
    const std::int64_t told = waited == 0 ? -1 : waited;
    // Odd already if an earlier process of this slot was killed right here.
    const std::uint64_t writing = pace_->writes.load() | 1;
    pace_->writes.store(writing);
    pace_->step.store(step);
    pace_->step_ns.store(on_page(now.time_since_epoch()));
    pace_->waited_ns.store(told);
    if (is_first) {
        pace_->first_waited_ns.store(told);
    }
    pace_->writes.store(writing + 1);
    if (is_first) {
        figures_->first_step.store(step);
        stamp(figures_->first_step_ns, now);
    }
}

void Page::tell_waited(Duration time) {
    pace_->waiting_ns.fetch_add(on_page(time));
}

void Page::tell_checkpointing(Duration time) {
    if (figures_->first_step_ns.load() != 0) {
        pace_->checkpointing_ns.fetch_add(on_page(time));
    }
}

void Page::tell_total_steps(std::int64_t steps) {
    pace_->total_steps.store(static_cast<std::uint64_t>(steps));
}

void Page::tell_group_ready(Instant now) {
    stamp(figures_->group_ready_ns, now);
}

void Page::tell_resumed(Instant now) {
    stamp(figures_->resumed_ns, now);
}

void Page::tell_checkpoints(std::string_view path) {
    if (path.size() > checkpoints_->path.size()) {
        return;
    }
    checkpoints_->path_bytes.store(0);
    store_text(path, checkpoints_->path, checkpoints_->path_bytes);
}

template <typename Write>
void Page::write_saves(const Write& write) {
    // Odd already if an earlier process of this slot was killed right here.
    const std::uint64_t writing = saves_->writes.load() | 1;
    saves_->writes.store(writing);
    std::atomic_thread_fence(std::memory_order_release);  // the reason is stored relaxed
    write(*saves_);
    saves_->writes.store(writing + 1);
}

void Page::tell_save_asked(bool is_late) {
    const std::lock_guard lock(save_->mutex);
    const Instant now = std::chrono::steady_clock::now();
    write_saves([&](WorkerPageSaves& saves) {
        saves.late.store(is_late ? saves.late.load() + 1 : 0);
        saves.in_time.store(is_late ? 0 : saves.in_time.load() + 1);
        if (save_->asked != Instant::min()) {
            saves.interval_ns.store(on_page(now - save_->asked));
        }
    });
    save_->asked = now;
    if (is_late) {
        ring_bell(header_);
    }
}

void Page::tell_save_begun(std::int64_t step) {
    const std::lock_guard lock(save_->mutex);
    save_->step = step;
    save_->begun = std::chrono::steady_clock::now();
    save_->stalled.reset();
    save_->end.reset();
    write_saves([&](WorkerPageSaves& saves) {
        saves.begun_step.store(static_cast<std::uint64_t>(step));
        saves.begun_ns.store(on_page(save_->begun.time_since_epoch()));
    });
}

void Page::tell_save_stalled(Duration time) {
    const std::lock_guard lock(save_->mutex);
    if (save_->step && !save_->stalled) {
        save_->stalled = time;
        tell_whole_save();
    }
}

void Page::tell_save_ended(const SaveEnd& end) {
    const std::lock_guard lock(save_->mutex);
    if (save_->step && !save_->end) {
        save_->end = end;
        save_->ended = std::chrono::steady_clock::now();
        tell_whole_save();
    }
}

void Page::tell_whole_save() {
    if (!save_->stalled || !save_->end) {
        return;
    }
    const auto step = static_cast<std::uint64_t>(*save_->step);
    write_saves([&](WorkerPageSaves& saves) {
        const std::int64_t ended_ns = on_page(save_->ended.time_since_epoch());
        if (!save_->end->is_complete) {
            saves.failed.store(saves.failed.load() + 1);
            saves.failed_step.store(step);
            saves.failed_ns.store(ended_ns);
            const std::string why = utf8_cut(save_->end->why, reason_->text.size());
            store_text(why, reason_->text, reason_->text_bytes);
            return;
        }
        saves.saved.store(saves.saved.load() + 1);
        saves.step.store(step);
        saves.saved_ns.store(ended_ns);
        saves.state_bytes.store(save_->end->bytes);
        saves.stall_ns.store(on_page(*save_->stalled));
        saves.took_ns.store(on_page(save_->ended - save_->begun));
        saves.places.store(save_->end->places);
    });
    save_->step.reset();
    ring_bell(header_);
}

}  // namespace ddprun::worker
