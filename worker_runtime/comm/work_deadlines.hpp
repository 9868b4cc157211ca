#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace ddprun::worker {

/// The time-out of operations that no thread waits for: a collective on a GPU is waited for by a
/// stream. A thread sleeps until the oldest operation that is not done reaches its time-out.
class WorkDeadlines {
public:
    struct Operation {
        c10::intrusive_ptr<c10d::Work> work;
        std::vector<int> peers;  ///< the other ranks of transfers; empty: a collective of all
    };

    /// Called once, by that thread, with the first operation that is late. No later one is
    /// checked.
    using Late = std::function<void(const Operation&)>;

    WorkDeadlines(std::chrono::milliseconds timeout, Late late);
    /// Waits for a call of `late` that goes on. Not to be called by it.
    ~WorkDeadlines();
    WorkDeadlines(const WorkDeadlines&) = delete;
    WorkDeadlines& operator=(const WorkDeadlines&) = delete;

    /// Watches an operation that has begun now. From any thread. Each call releases the oldest ones
    /// that are done or have failed, up to the first that is neither.
    void watch(Operation operation);

private:
    using Clock = std::chrono::steady_clock;

    struct Watched {
        Operation operation;
        Clock::time_point late_at;
    };

    void drop_completed();
    void run();

    const std::chrono::milliseconds timeout_;
    const Late late_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Watched> watched_;  ///< in the order of their beginning
    bool is_over_ = false;         ///< one was late, or this object ends
    std::thread thread_;           ///< from the first operation on
};

}  // namespace ddprun::worker
