#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/contract/effects.hpp"
#include "agent/daemon/life_watch.hpp"
#include "agent/process/worker_page.hpp"
#include "agent/watch/chronicle.hpp"
#include "base/os/unique_fd.hpp"
#include "base/result.hpp"
#include "base/tagged.hpp"

namespace ddprun::agent {

/// Keeps the page of the generation that lives here and carries out effects on it. Without a page,
/// workers are signalled and their progress is unknown. Effects for another generation than the
/// page's change nothing. Owned and called by the agent's thread.
class SharedPage {
public:
    /// Called when LifeWatch finds a sign of a worker of this generation; on the watch's thread.
    using OnSign = std::function<void(Generation, LocalRank, FatalSignal told)>;

    SharedPage(OnSign on_sign, LifeWatch::OnSaves on_saves)
        : on_sign_(std::move(on_sign)), on_saves_(std::move(on_saves)) {}

    /// Makes the page of these workers. On failure there is none. A kernel that cannot report
    /// deaths is no failure.
    [[nodiscard]] Result<void> make(const StartWorkers& start);

    /// The page, for the keeper to hold out to a worker; not open: there is none.
    [[nodiscard]] UniqueFd file() const;

    void carry_out(const AskWorkersToLeave& effect);
    void carry_out(const AllowPublishing& effect);

    /// True if the signal is not for this worker: it learns of the stop through the page.
    [[nodiscard]] bool is_spared(const SignalWorkers& effect, LocalRank local_rank) const;

    [[nodiscard]] std::optional<std::uint64_t> progress(Generation generation,
                                                        LocalRank local_rank) const;

    /// Returns how far the workers are, as they told, by local rank; none without a page.
    [[nodiscard]] std::vector<WorkerMoments> moments() const;

    /// Returns the places of the workers' checkpoints, as they told: each place once, at most
    /// read_ahead_places_max.
    [[nodiscard]] std::vector<std::string> checkpoints() const;

private:
    [[nodiscard]] bool is_of(Generation generation) const;

    OnSign on_sign_;
    LifeWatch::OnSaves on_saves_;
    std::unique_ptr<WorkerPage> page_;
    std::unique_ptr<LifeWatch> watch_;  ///< after the page, which it reads
};

}  // namespace ddprun::agent
