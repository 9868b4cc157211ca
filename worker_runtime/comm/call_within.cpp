#include "worker_runtime/comm/call_within.hpp"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "base/os/signals_blocked.hpp"
#include "worker_runtime/comm/peer_watch.hpp"

namespace ddprun::worker {

namespace {

constexpr std::chrono::milliseconds kLongest = std::chrono::years(1);

/// The outcome of a call on a thread of its own.
struct Attempt {
    std::mutex mutex;
    std::condition_variable changed;  ///< it is over, or a rank is lost
    bool is_over = false;             ///< the call has returned, or failed
    std::exception_ptr failure;
};

}  // namespace

void call_within(std::chrono::milliseconds bound, Loss& loss, std::string_view late,
                 std::function<void()> call) {
    const auto attempt = std::make_shared<Attempt>();
    {
        const SignalsBlocked blocked;
        std::thread([attempt, call = std::move(call)] {
            std::exception_ptr failure;
            try {
                call();
            } catch (...) {
                failure = std::current_exception();
            }
            const std::lock_guard lock(attempt->mutex);
            attempt->failure = failure;
            attempt->is_over = true;
            attempt->changed.notify_all();
        }).detach();
    }
    const Loss::Guard guard(loss, [attempt] {
        const std::lock_guard lock(attempt->mutex);  // else it may come just before the wait
        attempt->changed.notify_all();
    });
    std::unique_lock lock(attempt->mutex);
    const auto is_over = [&] { return attempt->is_over || loss.is_lost(); };
    if (bound.count() > 0) {
        // A clock's time must be able to hold the end.
        attempt->changed.wait_for(lock, std::min(bound, kLongest), is_over);
    } else {
        attempt->changed.wait(lock, is_over);
    }
    if (attempt->failure) {
        std::rethrow_exception(attempt->failure);
    }
    if (!attempt->is_over) {
        lock.unlock();
        loss.check();
        throw std::runtime_error(fmt::format("{} after {} ms", late, bound.count()));
    }
}

}  // namespace ddprun::worker
