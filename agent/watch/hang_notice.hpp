#pragma once

#include <optional>
#include <string>
#include <vector>

#include "agent/watch/node_progress.hpp"
#include "base/instant.hpp"
#include "base/tagged.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::agent {

using rdzv::HangSeen;

/// Says when the workers of a node live and go nowhere, at most once a generation. Nothing is ended
/// by it. Pure.
class HangNotice {
public:
    /// 0: never.
    explicit HangNotice(Milliseconds after) : after_(after) {}

    /// By the steps that `workers` have told, the first of which is `base_rank`: none that still
    /// runs has told one for so long. Those that have told none are not judged: they may load data,
    /// or report none at all.
    [[nodiscard]] std::optional<HangSeen> look_at_steps(Instant now, Generation generation,
                                                        Rank base_rank, const std::string& host,
                                                        const std::vector<WorkerState>& workers);

    /// Takes another sign: returns it unless workers report steps or a sign was returned before.
    [[nodiscard]] std::optional<HangSeen> take(Instant now, Generation generation,
                                               const std::vector<WorkerState>& workers,
                                               std::optional<HangSeen> seen);

    [[nodiscard]] bool is_said(Generation generation) const { return generation == said_; }
    [[nodiscard]] Milliseconds after() const { return after_; }

private:
    Milliseconds after_;
    Generation said_;  ///< of this generation it was said
};

}  // namespace ddprun::agent
