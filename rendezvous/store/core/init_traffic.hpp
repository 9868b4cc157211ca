#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/instant.hpp"
#include "rendezvous/store/protocol/replies.hpp"

namespace ddprun::rdzv {

/// InitTraffic's findings for other threads: nanoseconds on CLOCK_MONOTONIC, 0: not yet.
struct SharedInitTraffic {
    std::atomic<std::int64_t> all_here_ns{0};
    std::atomic<std::int64_t> group_ns{0};
    std::atomic<bool> is_over{false};  ///< set by the reader of them: nothing is watched any more
};

/// Watches one store: when the last expected client came, and when the default group of
/// `torch.distributed` last asked for its own keys, once all clients have. init_process_group() is
/// then over, or close to it: an estimate, for programs that report nothing. On the store's thread.
class InitTraffic {
public:
    /// `expected`: the world size; 0: nothing is watched. `shared` outlives this.
    InitTraffic(std::size_t expected, SharedInitTraffic& shared);

    /// A reader still waits for the findings: else no function below needs to be called.
    [[nodiscard]] bool is_open() const {
        return expected_ > 0 && !shared_.is_over.load(std::memory_order_relaxed);
    }

    /// So many clients are connected.
    void note_connected(Instant now, std::size_t clients);

    /// Whether `request` is one that init_process_group() makes.
    [[nodiscard]] static bool is_of_default_group(std::string_view request);
    void note_of_default_group(Instant now, StoreClient client);

private:
    std::size_t expected_;
    SharedInitTraffic& shared_;
    std::vector<bool> asked_;  ///< by client number
    std::size_t asked_count_ = 0;
};

}  // namespace ddprun::rdzv
