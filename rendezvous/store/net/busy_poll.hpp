#pragma once

#include <algorithm>
#include <cstdint>

namespace ddprun::rdzv {

/// Decides whether the store's thread, before it sleeps, polls for a moment: while one client alone
/// asks again and again, waking up takes longer than a request. After polling in vain, the thread
/// skips polling for a while, for longer each time: a client that has to run on this very
/// processor, because others are busy, is only kept from asking.
class StoreBusyPoll {
public:
    /// Instead of a client: several events, or none of a client.
    static constexpr std::uint64_t kNobody = 0;
    static constexpr unsigned kLeftOutMax = 1023;  ///< waits, before one more attempt

    explicit StoreBusyPoll(bool has_other_cpus) : has_other_cpus_(has_other_cpus) {}

    /// Whether the wait that begins now begins with looking.
    [[nodiscard]] bool is_due() const { return is_dialogue_ && left_out_ == 0; }

    /// Whether on_turn() will ask if that wait was short.
    [[nodiscard]] bool needs_time() const { return last_ != kNobody; }

    /// That wait has brought one event of `client`, or kNobody; `was_short`: within the time for
    /// which looking is worth it.
    void on_turn(std::uint64_t client, bool was_short) {
        if (is_due()) {
            in_vain_ = was_short ? 0 : std::min(2 * in_vain_ + 1, kLeftOutMax);
            left_out_ = in_vain_;
        } else if (left_out_ > 0) {
            --left_out_;
        }
        is_dialogue_ = has_other_cpus_ && was_short && client != kNobody && client == last_;
        last_ = client;
    }

private:
    const bool has_other_cpus_;
    bool is_dialogue_ = false;      ///< the last two turns: one client, which asked again at once
    std::uint64_t last_ = kNobody;  ///< the client of the last turn
    unsigned in_vain_ = 0;          ///< how many waits were left out when it last was in vain
    unsigned left_out_ = 0;         ///< still to be left out
};

}  // namespace ddprun::rdzv
