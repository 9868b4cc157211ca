#pragma once

#include <map>
#include <optional>
#include <vector>

#include "base/instant.hpp"
#include "base/tagged.hpp"
#include "rendezvous/events/event.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::agent {

/// What the rendezvous is told of the moments that this node's workers have come to: each once, and
/// all again to a rendezvous that is met anew. Pure.
class MomentsTold {
public:
    /// The generation whose workers are started here; nothing of the last one is told any more.
    void begin(Generation generation, int base_rank);

    /// The join was accepted, by one that hears of moments or not; what it is to be told at once.
    [[nodiscard]] std::optional<rdzv::Reached> met(Instant now, bool hears);
    void cut_off() { is_heard_ = false; }

    /// What is new to tell after these events.
    [[nodiscard]] std::optional<rdzv::Reached> note(Instant now,
                                                    const std::vector<rdzv::Event>& events);

    /// Nothing is left to tell of this generation, or to nobody.
    [[nodiscard]] bool is_done() const;

private:
    struct Reached {
        Instant at{};
        rdzv::ReachedMoment moment;
    };
    [[nodiscard]] rdzv::Reached message(Instant now, const std::vector<rdzv::Moment>& which) const;

    Generation generation_;
    int base_rank_ = 0;
    bool is_heard_ = false;
    std::map<rdzv::Moment, Reached> reached_;
};

}  // namespace ddprun::agent
