#include "worker_runtime/state/background_save.hpp"

#include <sys/resource.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "worker_runtime/comm/peer_watch.hpp"
#include "worker_runtime/comm/votes.hpp"
#include "worker_runtime/contract/worker_page.hpp"

namespace ddprun::worker {

namespace {

/// The training's threads go before this one.
void lower_priority() {
    constexpr int kNiceness = 10;
    (void)::setpriority(PRIO_PROCESS, 0, ::getpriority(PRIO_PROCESS, 0) + kNiceness);
}

}  // namespace

BackgroundSave::BackgroundSave(ProcessGroup group, std::function<void(const std::string&)> say)
    : group_(std::move(group)), say_(std::move(say)) {
    group_.background_saves().saves[this] = {.wait_for_copy = [this] { wait_for_copy(); },
                                             .wait_for_end = [this] { (void)wait(); }};
}

BackgroundSave::~BackgroundSave() {
    (void)wait();
    end_paging();
    group_.background_saves().saves.erase(this);
}

bool BackgroundSave::is_under_way() const {
    return ended_.valid() && ended_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

void BackgroundSave::end_paging() {
    is_paging_cut_short_ = true;
    if (paging_.joinable()) {
        paging_.join();
    }
}

Result<void> BackgroundSave::check_room(const CheckpointShare& share, int processes) const {
    return caught<void>([&] { return staging_.check_room(share, processes); });
}

Result<void> BackgroundSave::prepare(const CheckpointShare& share) {
    end_paging();
    is_paging_cut_short_ = false;
    if (const Result<void> connected = connect(); !connected) {
        return connected;
    }
    return caught<void>([&]() -> Result<void> {
        staging_.reserve(share);
        paging_ = std::thread([this] {
            lower_priority();
            staging_.bring_in_pages(is_paging_cut_short_);
        });
        return {};
    });
}

bool BackgroundSave::is_connected() {
    // A connection that has failed, or a rank that was late, has broken the twin alone.
    return twin_ && twin_->check("connecting once more").has_value();
}

Result<void> BackgroundSave::connect() {
    if (!twin_) {
        Result<ProcessGroup> twin = group_.gloo_twin();
        if (!twin) {
            return twin.error();
        }
        twin_ = *std::move(twin);
    }
    return {};
}

Result<void> BackgroundSave::begin(const SaveTargets& targets, CheckpointShare share,
                                   bool are_connected, const PublishOptions& options,
                                   OnEnd on_end) {
    if (!are_connected) {
        twin_.reset();
    }
    if (const Result<void> connected = connect(); !connected) {
        return connected;
    }
    const auto work = std::make_shared<Work>(Work{.targets = targets,
                                                  .options = options,
                                                  .share = std::move(share),
                                                  .on_end = std::move(on_end)});
    end_paging();
    // A rank whose copies fail tells the others in run().
    work->copied_now = caught<void>([&]() -> Result<void> {
        staging_.reserve(work->share);
        staging_.copy_now(work->share);
        return {};
    });
    copied_ = work->copied.get_future().share();
    ended_ = work->ended.get_future().share();
    try {
        thread_ = std::thread(
            [this, work] { work->ended.set_value(run(*work, /*is_on_own_thread=*/true)); });
    } catch (const std::system_error&) {
        // The others have begun: without a thread the training waits.
        work->ended.set_value(run(*work, /*is_on_own_thread=*/false));
    }
    return {};
}

Result<void> BackgroundSave::run(Work& work, bool is_on_own_thread) {
    Result<void> done = work.copied_now;
    if (done) {
        done = caught<void>([&]() -> Result<void> {
            staging_.copy_rest(work.share);
            group_.loss()->check();  // A GPU's memory since a rank was lost may be anything.
            return {};
        });
    }
    work.copied.set_value();
    if (is_on_own_thread) {
        lower_priority();
    }
    const std::int64_t step = work.share.info.step;
    done = caught<void>([&]() -> Result<void> {
        // A rank without a copy must not leave the others waiting.
        Result<void> agreed = agree_on(*twin_, done);
        if (agreed) {
            agreed = combine(*twin_, work.share);
        }
        return agreed ? write(work)
                      : Result<void>(not_written(work.targets.dir, step, agreed.error()));
    });
    // After a lost rank the training's own collectives fail, and say why.
    if (!done && !group_.loss()->is_lost() && group_.rank() == 0) {
        say_(done.error().what + "; the training goes on");
    }
    work.on_end(done, work.places);
    return done;
}

Result<void> BackgroundSave::write(Work& work) {
    Result<void> kept;
    if (work.targets.memory != nullptr) {
        kept = work.targets.memory->save(*twin_, work.share, work.options.is_isolated);
        if (kept) {
            work.places = kSavePlaceMemory;
            work.places |= work.targets.memory->have_all_copies() ? kSavePlacePartner : 0;
        } else {
            kept = Error{kept.error().code, fmt::format("step {} is not kept in memory: {}",
                                                        work.share.info.step, kept.error().what)};
        }
    }
    if (!work.targets.has_disk) {
        return kept;
    }
    if (!kept && group_.rank() == 0 && !group_.loss()->is_lost()) {
        say_(kept.error().what);
    }
    const Result<void> written = write_together(*twin_, work.targets.dir, work.share, work.options);
    work.places |= written ? kSavePlaceDisk : 0;
    return written;
}

void BackgroundSave::wait_for_copy() const {
    if (copied_.valid()) {
        copied_.wait();
    }
}

Result<void> BackgroundSave::wait() {
    if (!ended_.valid()) {
        return {};
    }
    if (thread_.joinable()) {
        thread_.join();
    }
    return ended_.get();
}

}  // namespace ddprun::worker
