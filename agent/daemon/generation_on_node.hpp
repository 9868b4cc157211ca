#pragma once

#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "agent/contract/effects.hpp"
#include "agent/contract/signs_of_life.hpp"
#include "agent/daemon/kernel_log.hpp"
#include "agent/daemon/shared_page.hpp"
#include "agent/output/worker_output.hpp"
#include "agent/process/keeper_protocol.hpp"
#include "base/instant.hpp"
#include "base/result.hpp"
#include "base/tagged.hpp"
#include "rendezvous/wire/messages.hpp"
#include "worker_runtime/contract/worker_page.hpp"

namespace ddprun::agent {

/// All that belongs to one generation on this node, from StartWorkers to Emptied: its workers,
/// their pids, the page shared with them, what the kernel has logged since it began, and how far it
/// has come. Starts and signals no process itself. Owned and called by the agent's thread.
class GenerationOnNode {
public:
    /// The functions are SharedPage's.
    GenerationOnNode(StartWorkers start, SharedPage::OnSign on_sign, LifeWatch::OnSaves on_saves);
    GenerationOnNode(const GenerationOnNode&) = delete;
    GenerationOnNode& operator=(const GenerationOnNode&) = delete;

    /// As SharedPage::make(): on failure workers learn of a drain by signals alone.
    [[nodiscard]] Result<void> make_page() { return page_.make(start_); }

    [[nodiscard]] Generation number() const { return start_.generation; }
    /// By local rank.
    [[nodiscard]] const std::vector<WorkerSpec>& workers() const { return start_.workers; }
    [[nodiscard]] const WorkerSpec& worker(LocalRank local_rank) const;
    /// Returns the port of the workers' store, their MASTER_PORT; 0: the node has no workers.
    [[nodiscard]] int store_port() const;

    /// The first stage: no worker is spawned before the folders of these pipes, by local rank,
    /// exist, for a worker may write its error file at once.
    void await_folders(std::vector<OutputPipes> pipes);

    /// The folders exist: returns the pipes to spawn the workers with. Returns nothing if a signal
    /// or the order to empty the generation came first; then no worker is to be spawned.
    [[nodiscard]] std::optional<std::vector<OutputPipes>> take_pipes();

    /// A signal is for workers. True, once, if they have not been spawned, and will never be: then
    /// it is as if the signal had ended each of them.
    [[nodiscard]] bool end_before_spawn();

    /// Workers were signalled: none is started any more in the place of another.
    void note_signal() { is_signalled_ = true; }
    [[nodiscard]] bool may_start_again() const {
        return !is_signalled_ && std::holds_alternative<Spawned>(stage_);
    }

    /// From now on nothing is left to do but to prove it empty.
    void begin_emptying() { stage_ = BeingEmptied{}; }

    /// Returns the sign that abnormal_end() could not check before: that is due now.
    [[nodiscard]] std::optional<FatalSignal> worker_started(LocalRank local_rank, int pid);
    /// The pids of the workers that have been started.
    [[nodiscard]] const std::map<LocalRank, int>& pids() const { return pids_; }

    /// For the keeper to hold out to a worker; not open: there is none.
    [[nodiscard]] UniqueFd page_file() const { return page_.file(); }
    void carry_out(const AskWorkersToLeave& effect);
    void carry_out(const AllowPublishing& effect) { page_.carry_out(effect); }

    /// Whether it learns of a drain through the page, and needs no signal.
    [[nodiscard]] bool looks_at_page(LocalRank local_rank) const;

    /// The same of all workers.
    [[nodiscard]] bool all_look_at_page() const;

    /// Returns what the ending worker has told of its checkpoints.
    [[nodiscard]] SavedWork saved_by(LocalRank local_rank) const;

    /// Those that the signal is for.
    [[nodiscard]] std::vector<LocalRank> meant_by(const SignalWorkers& effect) const;

    /// Returns the workers' signs of life until now, `output` and `cpu` among them.
    [[nodiscard]] SignsOfLife seen(const OutputMeasure& output, Duration cpu) const;

    [[nodiscard]] std::vector<WorkerMoments> moments() const { return page_.moments(); }

    /// As SharedPage::checkpoints().
    [[nodiscard]] std::vector<std::string> checkpoints() const { return page_.checkpoints(); }

    /// Returns the evidence of a worker's end that is known at once.
    [[nodiscard]] rdzv::Evidence evidence(LocalRank local_rank, const WorkerEnd& end);

    /// The same of one that was ended by `signal` before it was spawned.
    [[nodiscard]] rdzv::Evidence evidence_before_spawn(LocalRank local_rank, int signal) const;

    /// As abnormal_end_of() a worker that LifeWatch has seen a sign of. Returns nothing, too, for a
    /// worker not yet reported as started: it may die before the keeper reports its pid.
    [[nodiscard]] std::optional<WorkerEnd> abnormal_end(LocalRank local_rank, FatalSignal told);

private:
    struct AwaitsFolders {
        std::vector<OutputPipes> pipes;
    };
    /// The keeper was asked for the workers, or they ended before.
    struct Spawned {};
    struct BeingEmptied {};

    /// 0: it has not been started.
    [[nodiscard]] int pid_of(LocalRank local_rank) const;

    StartWorkers start_;
    std::variant<AwaitsFolders, Spawned, BeingEmptied> stage_;
    bool is_signalled_ = false;
    std::map<LocalRank, int> pids_;
    std::map<LocalRank, FatalSignal> early_signs_;  ///< the last of each that has no pid yet
    SharedPage page_;
    std::optional<std::vector<WorkerMoments>> when_asked_;  ///< to save and leave, the first time
    KernelLog kernel_log_;
};

}  // namespace ddprun::agent
