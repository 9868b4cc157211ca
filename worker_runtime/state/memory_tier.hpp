#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "worker_runtime/checkpoint/loaded_checkpoint.hpp"
#include "worker_runtime/comm/process_group.hpp"
#include "worker_runtime/env/environment.hpp"
#include "worker_runtime/memory/checkpoint_memory.hpp"
#include "worker_runtime/memory/copies.hpp"
#include "worker_runtime/state/saving.hpp"

/// The checkpoints of a training in the memory of its nodes. Every rank calls the same functions in
/// the same order; one thread at a time.
namespace ddprun::worker {

class MemoryTier {
public:
    using Say = std::function<void(const std::string& line)>;

    MemoryTier(CheckpointMemory memory, const WorkerEnvironment& place, Say say);

    /// Connects every rank with its node's ddprun-memory, and names each node's partner. Null, on
    /// every rank, if a rank has none; `say` gets a line on one rank if others have one. `series`
    /// names the training on all nodes alike: the folder of its checkpoints.
    [[nodiscard]] static Result<std::unique_ptr<MemoryTier>> connect(ProcessGroup& group,
                                                                     const WorkerEnvironment& place,
                                                                     const std::string& series,
                                                                     Say say);

    /// Writes all ranks' shares and seals the step. `group` may be another one than connect()'s,
    /// of the same ranks. A step that is kept already is replaced. Fails on every rank alike; the
    /// save before it then still counts.
    [[nodiscard]] Result<void> save(ProcessGroup& group, const CheckpointShare& share,
                                    const std::function<bool()>& is_isolated);

    /// After save(): true if other nodes have copies of what all ranks wrote.
    [[nodiscard]] bool have_all_copies() const { return have_all_copies_; }

    /// Loads the newest step of which the nodes together have all files, if it is `at_least` that
    /// save; files that this node lacks are copied from others. Every node then has the step, and
    /// its manifest, so that it survives any one machine once more. Returns nothing, on every rank,
    /// if no step can be put together. A line says which copies cannot be used.
    [[nodiscard]] Result<std::optional<LoadedCheckpoint>> load(ProcessGroup& group,
                                                               const SavedStep& at_least);

private:
    [[nodiscard]] Result<std::vector<ManifestFile>> write(const CheckpointShare& share);
    [[nodiscard]] Result<LoadedCheckpoint> load_from(ProcessGroup& group,
                                                     const MemoryCandidate& candidate,
                                                     const std::vector<NodeCopies>& nodes);
    void say_note(const std::string& note);

    CheckpointMemory memory_;
    PlaceOnNode place_;
    Say say_;
    bool has_partner_ = false;
    bool have_all_copies_ = false;
    std::string last_note_;  ///< why the partner has no copy; empty: it has
};

}  // namespace ddprun::worker
