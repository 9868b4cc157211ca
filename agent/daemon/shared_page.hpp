#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "agent/core/supervisor.hpp"
#include "agent/process/worker_page.hpp"
#include "rendezvous/base/error.hpp"
#include "rendezvous/base/tagged.hpp"

namespace ddprun::agent {

/// What an agent does with the page of the generation that lives here. There may be none: then
/// workers are signalled and nobody knows how far they came. Effects for another generation than
/// the page's change nothing. Owned and called by the agent's thread.
class SharedPage {
public:
    /// Makes the page of these workers and adds its path to their environment. On failure there is
    /// none and the environment is as it was.
    [[nodiscard]] Result<void> make(StartWorkers& start);

    void drop(Generation generation);

    void carry_out(const AskWorkersToLeave& effect);
    void carry_out(const AllowPublishing& effect);

    /// True if the signal is not for this worker: it learns of the stop through the page.
    [[nodiscard]] bool is_spared(const SignalWorkers& effect, LocalRank local_rank) const;

    [[nodiscard]] std::optional<std::uint64_t> progress(Generation generation,
                                                        LocalRank local_rank) const;

private:
    [[nodiscard]] bool is_of(Generation generation) const;

    std::unique_ptr<WorkerPage> page_;
};

}  // namespace ddprun::agent
