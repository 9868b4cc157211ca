#pragma once

#include <optional>
#include <string>
#include <vector>

#include "agent/watch/chronicle.hpp"
#include "base/instant.hpp"
#include "base/tagged.hpp"
#include "base/watch_limits.hpp"
#include "rendezvous/events/event.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::agent {

/// Reports the saves of this node's lowest local rank that leads saves: events, the message for the
/// rendezvous, and a line when the disk falls behind and when it keeps up again. Reports at most
/// once per WatchLimits::saves_interval. Pure.
class SavesWatch {
public:
    explicit SavesWatch(const WatchLimits& limits) : limits_(limits) {}

    /// The generation whose workers are started here.
    void begin(Generation generation, Rank base_rank);

    struct News {
        std::vector<rdzv::Event> events;
        std::optional<rdzv::SavesSeen> seen;  ///< as of now, if there is news
        std::string line;                     ///< for people, without "ddprun: "; empty: none
    };
    /// `workers` by local rank; none: they are gone. `have_ended`: a worker ends, or all are to;
    /// then nothing is held back.
    [[nodiscard]] News look(Instant now, const std::vector<WorkerMoments>& workers,
                            bool have_ended);

    /// When held back news is to be asked for, by another look().
    [[nodiscard]] std::optional<Instant> due() const { return due_; }

private:
    [[nodiscard]] std::string behind(const SavesTold& told) const;

    WatchLimits limits_;
    Generation generation_;
    Rank base_rank_;
    rdzv::SavesSeen seen_;  ///< was reported
    std::optional<Instant> reported_;
    std::optional<Instant> due_;
};

}  // namespace ddprun::agent
