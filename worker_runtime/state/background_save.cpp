#include "worker_runtime/state/background_save.hpp"

#include <sys/resource.h>

#include <chrono>
#include <exception>
#include <utility>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "worker_runtime/comm/exception_text.hpp"
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
                                   const PublishOptions& options) {
    (void)wait();
    const Result<void> room = staging_.reserve(share, processes);
    const Result<void> agreed = agree_on(group_, room);
    if (!agreed) {
        return not_written(dir, share.info.step, agreed.error());
    }
    if (!twin_) {
        Result<ProcessGroup> twin = group_.gloo_twin();
        if (!twin) {
            return twin.error();
        }
        twin_ = *std::move(twin);
    }
    staging_.copy_now(share);
    std::promise<void> copied;
    std::promise<Result<void>> ended;
    copied_ = copied.get_future().share();
    ended_ = ended.get_future().share();
    thread_ = std::thread([this, dir, options, share = std::move(share), copied = std::move(copied),
                           ended = std::move(ended)]() mutable {
        ended.set_value(run(dir, share, options, copied));
    });
    return {};
}

Result<void> BackgroundSave::run(const std::string& dir, CheckpointShare& share,
                                 const PublishOptions& options, std::promise<void>& copied) {
    Result<void> done;
    try {
        staging_.copy_rest(share);
        group_.loss()->check();  // A GPU's memory since a rank was lost may be anything.
    } catch (const std::exception& failure) {
        done = Error{ErrorCode::System, first_line(failure)};
    }
    copied.set_value();
    (void)::setpriority(PRIO_PROCESS, 0, ::getpriority(PRIO_PROCESS, 0) + kNiceness);
    try {
        // A rank without a copy must not leave the others waiting.
        const Result<void> agreed = agree_on(*twin_, done);
        done = agreed ? write_together(*twin_, dir, share, options)
                      : Result<void>(not_written(dir, share.info.step, agreed.error()));
    } catch (const std::exception& failure) {
        done = not_written(dir, share.info.step, {ErrorCode::System, first_line(failure)});
    }
    // After a lost rank the training's own collectives fail, and say why.
    if (!done && done.error().code != ErrorCode::ConnectionLost && group_.rank() == 0) {
        say_(done.error().what + "; the training goes on");
    }
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
