#include "worker_runtime/state/background_save.hpp"

#include <sys/resource.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <system_error>
#include <utility>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "worker_runtime/comm/peer_watch.hpp"
#include "worker_runtime/comm/votes.hpp"

namespace ddprun::worker {

namespace {

/// Added to the niceness of the thread that writes: the training's threads go first.
constexpr int kNiceness = 10;

}  // namespace

BackgroundSave::BackgroundSave(ProcessGroup group, std::function<void(const std::string&)> say)
    : group_(std::move(group)), say_(std::move(say)) {
    group_.background_saves().saves[this] = {.wait_for_copy = [this] { wait_for_copy(); },
                                             .wait_for_end = [this] { (void)wait(); }};
}

BackgroundSave::~BackgroundSave() {
    (void)wait();
    group_.background_saves().saves.erase(this);
}

bool BackgroundSave::is_under_way() const {
    return ended_.valid() && ended_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

Result<void> BackgroundSave::begin(const std::string& dir, CheckpointShare share, int processes,
                                   const PublishOptions& options,
                                   std::function<void(const Result<void>&)> on_end) {
    const Result<void> room = caught<void>([&] { return staging_.reserve(share, processes); });
    const Result<void> agreed = agree_on(group_, room);
    if (!agreed) {
        return not_written(dir, share.info.step, agreed.error());
    }
    // A connection that has failed, or a rank that was late, has broken the twin alone.
    const Result<std::optional<int>> broken =
        first_rank_against(group_, !twin_ || twin_->check("connecting once more").has_value());
    if (!broken) {
        return broken.error();
    }
    if (broken->has_value()) {
        twin_.reset();
    }
    if (!twin_) {
        Result<ProcessGroup> twin = group_.gloo_twin();
        if (!twin) {
            return twin.error();
        }
        twin_ = *std::move(twin);
    }
    const auto work = std::make_shared<Work>(Work{
        .dir = dir, .options = options, .share = std::move(share), .on_end = std::move(on_end)});
    // A rank whose copies fail tells the others in run().
    work->copied_now = caught<void>([&]() -> Result<void> {
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
        (void)::setpriority(PRIO_PROCESS, 0, ::getpriority(PRIO_PROCESS, 0) + kNiceness);
    }
    const std::int64_t step = work.share.info.step;
    done = caught<void>([&]() -> Result<void> {
        // A rank without a copy must not leave the others waiting.
        const Result<void> agreed = agree_on(*twin_, done);
        return agreed ? write_together(*twin_, work.dir, work.share, work.options)
                      : Result<void>(not_written(work.dir, step, agreed.error()));
    });
    // After a lost rank the training's own collectives fail, and say why.
    if (!done && !group_.loss()->is_lost() && group_.rank() == 0) {
        say_(done.error().what + "; the training goes on");
    }
    work.on_end(done);
    return done;
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
