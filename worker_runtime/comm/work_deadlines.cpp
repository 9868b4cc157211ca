#include "worker_runtime/comm/work_deadlines.hpp"

#include <exception>
#include <utility>

#include "base/os/signals_blocked.hpp"

namespace ddprun::worker {

namespace {

/// An operation that cannot be asked has failed: its result gives the reason.
bool is_completed(c10d::Work& work) {
    try {
        return work.isCompleted();
    } catch (const std::exception&) {
        return true;
    }
}

}  // namespace

WorkDeadlines::WorkDeadlines(std::chrono::milliseconds timeout, Late late)
    : timeout_(timeout), late_(std::move(late)) {}

WorkDeadlines::~WorkDeadlines() {
    {
        const std::lock_guard lock(mutex_);
        is_over_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) {
        thread_.join();
    }
}

void WorkDeadlines::watch(Operation operation) {
    const std::lock_guard lock(mutex_);
    drop_completed();
    if (is_over_) {
        return;
    }
    watched_.push_back({std::move(operation), Clock::now() + timeout_});
    if (!thread_.joinable()) {
        const SignalsBlocked blocked;
        thread_ = std::thread([this] { run(); });
    } else if (watched_.size() == 1) {
        changed_.notify_all();
    }
}

void WorkDeadlines::drop_completed() {
    while (!watched_.empty() && is_completed(*watched_.front().operation.work)) {
        watched_.pop_front();
    }
}

void WorkDeadlines::run() {
    std::unique_lock lock(mutex_);
    while (!is_over_) {
        if (watched_.empty()) {
            changed_.wait(lock);
        } else if (Clock::now() < watched_.front().late_at) {
            changed_.wait_until(lock, watched_.front().late_at);
        } else if (is_completed(*watched_.front().operation.work)) {
            watched_.pop_front();
        } else {
            is_over_ = true;
            const Operation late = std::move(watched_.front().operation);
            watched_.clear();
            lock.unlock();
            late_(late);
            lock.lock();
        }
    }
}

}  // namespace ddprun::worker
