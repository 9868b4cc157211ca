#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "agent/process/worker_page.hpp"
#include "base/tagged.hpp"
#include "worker_runtime/contract/worker_page.hpp"

namespace ddprun::agent {

/// Learns at once that a worker dies that holds its lock in the shared page: the kernel wakes a
/// thread of this object, which does nothing else. A sign is no proof: its receiver inspects the
/// process. A worker wakes the thread, too, when there is news of its saves.
class LifeWatch {
public:
    /// `told` is the signal by which the worker said that it dies, or all zero: the holder of its
    /// lock has ended, or has become another program. At most once for each; on the watch's thread.
    using OnSign = std::function<void(LocalRank, FatalSignal told)>;

    /// False on kernels before 5.16, which cannot wait for several futexes.
    [[nodiscard]] static bool is_possible();

    /// There is news of workers' saves in the page; on the watch's thread.
    using OnSaves = std::function<void()>;

    /// Watches the first kSlotsMax workers of `page`, which must outlive this.
    LifeWatch(WorkerPage& page, OnSign on_sign, OnSaves on_saves);
    /// After it neither is called any more.
    ~LifeWatch();
    LifeWatch(const LifeWatch&) = delete;
    LifeWatch& operator=(const LifeWatch&) = delete;

    /// The kernel waits for so many words at once, and one of them is the page's bell.
    static constexpr std::size_t kSlotsMax = 127;

private:
    /// The signs of one worker that were reported already.
    struct Sent {
        bool is_signal_told = false;
        bool is_end_told = false;
        std::uint64_t save_writes = 0;
    };

    void run();
    /// Tells what is new about it; returns the value of its lock's word that is old by now.
    std::uint32_t look_at(std::size_t index);
    void look_at_saves();

    WorkerPage& page_;
    OnSign on_sign_;
    OnSaves on_saves_;
    std::vector<Sent> sent_;  ///< by local rank; of the thread
    std::atomic<bool> is_ending_ = false;
    std::thread thread_;
};

}  // namespace ddprun::agent
