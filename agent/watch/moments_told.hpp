#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/instant.hpp"
#include "base/tagged.hpp"
#include "rendezvous/events/event.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::agent {

/// Tells the rendezvous the moments that this node's workers have come to: each once, and all again
/// to a rendezvous that is met anew. Pure.
class MomentsTold {
public:
    /// The generation whose workers are started here; nothing of the last one is told any more.
    void begin(Generation generation, int base_rank);

    /// The join was accepted, by one that hears of moments or not; what it is to be told at once.
    [[nodiscard]] std::optional<rdzv::Reached> met(Instant now, bool hears);
    void cut_off() { is_heard_ = false; }

    /// Returns the news to send after these events.
    [[nodiscard]] std::optional<rdzv::Reached> note(Instant now,
                                                    const std::vector<rdzv::Event>& events);

    /// Takes the last step and the checkpoint times that workers told, as TimeUse::note_told().
    /// Returns a message if workers spent more time on checkpoints, or have ended after more steps,
    /// or if there is news of their saves, as SavesWatch reports it.
    [[nodiscard]] std::optional<rdzv::Reached> note_told(
        Instant now, const std::optional<std::uint64_t>& step, Duration checkpointing,
        bool have_ended, const std::optional<rdzv::SavesSeen>& saves = {});

    /// A sign of a hang, the only one of this generation.
    [[nodiscard]] std::optional<rdzv::Reached> note_hang(Instant now, const rdzv::HangSeen& seen);

    /// True if the rendezvous hears of moments.
    [[nodiscard]] bool is_heard() const { return is_heard_; }

private:
    struct Reached {
        Instant at{};
        rdzv::ReachedMoment moment;
    };
    [[nodiscard]] rdzv::Reached message(Instant now, const std::vector<rdzv::Moment>& which);
    void add_saves(Instant now, rdzv::Reached& message) const;

    Generation generation_;
    int base_rank_ = 0;
    bool is_heard_ = false;
    std::map<rdzv::Moment, Reached> reached_;
    std::optional<std::uint64_t> step_;
    Milliseconds checkpointing_{0};
    std::optional<std::uint64_t> told_step_;  ///< the rendezvous knows it, and the next
    Milliseconds told_checkpointing_{0};
    std::optional<rdzv::HangSeen> hang_;
    std::optional<rdzv::SavesSeen> saves_;
    Instant saves_at_{};  ///< since when that is so
};

}  // namespace ddprun::agent
