#include "worker_runtime/state/memory_tier.hpp"

#include <utility>

#include <fmt/format.h>

#include "base/runtime_limits.hpp"
#include "worker_runtime/comm/texts.hpp"
#include "worker_runtime/comm/votes.hpp"
#include "worker_runtime/memory/agreement.hpp"
#include "worker_runtime/memory/rank_files.hpp"
#include "worker_runtime/state/dtype_names.hpp"
#include "worker_runtime/state/written_files.hpp"

namespace ddprun::worker {

namespace {

Result<std::vector<TensorFile>> tensor_files_of(const CheckpointShare& share) {
    std::vector<TensorFile> files;
    for (const CheckpointShare::File& file : share.files) {
        Result<std::vector<TensorView>> views = views_of(file.tensors);
        if (!views) {
            return views.error();
        }
        files.push_back({.name = file.name, .prefix = file.prefix, .tensors = *std::move(views)});
    }
    return files;
}

}  // namespace

MemoryTier::MemoryTier(CheckpointMemory memory, const WorkerEnvironment& place, Say say)
    : memory_(std::move(memory)),
      place_{.rank = place.rank.value(),
             .local_rank = place.slot.value(),
             .local_world_size = place.local_world_size},
      say_(std::move(say)) {}

Result<std::unique_ptr<MemoryTier>> MemoryTier::connect(ProcessGroup& group,
                                                        const WorkerEnvironment& place,
                                                        const std::string& series, Say say) {
    Result<CheckpointMemory> memory = Error{ErrorCode::NotFound, kNoMemory};
    if (!place.memory_checkpoints.empty()) {
        memory = CheckpointMemory::connect(
            place.memory_checkpoints,
            {.series = series, .rank = place.rank.value(), .generation = place.generation});
    }
    const MemoryRank own{.has_memory = memory.has_value(),
                         .endpoint = memory ? memory->endpoint() : std::string(),
                         .group_rank = place.group_rank,
                         .why = memory ? std::string() : memory.error().what};
    const Result<std::vector<std::string>> texts = gather_texts(group, text_of(own));
    if (!texts) {
        return texts.error();
    }
    const MemoryAgreement agreement = agreement_of(*texts, place.memory_partner);
    if (!agreement.is_kept) {
        if (!agreement.line.empty() && group.rank() == 0) {
            say(agreement.line);
        }
        return std::unique_ptr<MemoryTier>();
    }
    auto tier = std::make_unique<MemoryTier>(*std::move(memory), place, std::move(say));
    tier->has_partner_ = !agreement.endpoint.empty();
    const Result<void> agreed = agree_on(
        group, tier->has_partner_ ? tier->memory_.set_partner(agreement.endpoint) : Result<void>());
    return agreed ? Result<std::unique_ptr<MemoryTier>>(std::move(tier)) : agreed.error();
}

Result<void> MemoryTier::save(ProcessGroup& group, const CheckpointShare& share,
                              const std::function<bool()>& is_isolated) {
    // Ranks wait in collectives for the one whose partner takes longest.
    const ProcessGroup::LongerWait longer(group, RuntimeLimits{}.save_wait);
    memory_.begin_save({.step = share.info.step, .save = share.info.save});
    const Result<std::vector<std::string>> written =
        gather_results(group, described(share, write(share)));
    if (!written) {
        return written.error();
    }
    Result<std::string> text = std::string();
    if (group.rank() == 0) {
        const Result<std::vector<ManifestFile>> files = files_of_all(share, *written);
        text = files ? format_manifest({.info = share.info, .files = *files})
                     : Result<std::string>(files.error());
    }
    const Result<std::string> manifest = from_rank_0(group, text);
    if (!manifest) {
        return manifest.error();
    }
    // A node forgets the step before when it seals: so all can seal before one does.
    const Result<torch::Tensor> copied =
        agree_with_numbers(group, write_manifest(memory_, place_, *manifest, is_isolated()),
                           {last_note_.empty() ? 1 : 0});
    if (!copied) {
        return copied.error();
    }
    have_all_copies_ = has_partner_ && !first_zero_of(*copied);
    return agree_on(group, seal(memory_, place_));
}

Result<std::vector<ManifestFile>> MemoryTier::write(const CheckpointShare& share) {
    const Result<std::vector<TensorFile>> files = tensor_files_of(share);
    if (!files) {
        return files.error();
    }
    Result<RankFiles> written = write_files(memory_, *files);
    if (!written) {
        return written.error();
    }
    say_note(written->note);
    return std::move(written->files);
}

/// A note is said once, until it is another one.
void MemoryTier::say_note(const std::string& note) {
    if (note != last_note_ && !note.empty() && place_.local_rank == 0) {
        say_(fmt::format("rank {}: another node has no copy of the checkpoint in memory: {}",
                         place_.rank, note));
    }
    last_note_ = note;
}

Result<std::optional<LoadedCheckpoint>> MemoryTier::load(ProcessGroup& group,
                                                         const SavedStep& at_least) {
    const Result<std::vector<std::string>> texts =
        gather_texts(group, copies_text(memory_, place_));
    if (!texts) {
        return texts.error();
    }
    const Result<std::vector<NodeCopies>> nodes = nodes_of(*texts);
    if (!nodes) {
        return nodes.error();
    }
    if (const std::string line = unlisted_line(*nodes); !line.empty() && group.rank() == 0) {
        say_(line);
    }
    for (const MemoryCandidate& candidate : candidates_among(*nodes, at_least)) {
        Result<LoadedCheckpoint> loaded = load_from(group, candidate, *nodes);
        if (const Result<void> whole = group.check("loading a checkpoint from memory"); !whole) {
            return whole.error();
        }
        if (loaded) {
            return std::optional(*std::move(loaded));
        }
        // The error is the same on all ranks.
        if (group.rank() == 0) {
            say_(fmt::format("step {} in memory is passed over: {}", candidate.key.step,
                             loaded.error().what));
        }
    }
    return std::optional<LoadedCheckpoint>();
}

Result<LoadedCheckpoint> MemoryTier::load_from(ProcessGroup& group,
                                               const MemoryCandidate& candidate,
                                               const std::vector<NodeCopies>& nodes) {
    const Result<std::string> own = read_manifest(memory_, place_, candidate);
    const Result<void> read = own ? Result<void>() : Result<void>(own.error());
    if (const Result<void> agreed = agree_on(group, read); !agreed) {
        return agreed.error();
    }
    const Result<std::string> text =
        broadcast_text(group, *own, static_cast<int>(candidate.manifest_node));
    if (!text) {
        return text.error();
    }
    Result<Manifest> manifest = fetch_missing(memory_, place_, candidate, *text, nodes);
    const Result<void> fetched = manifest ? Result<void>() : Result<void>(manifest.error());
    if (const Result<void> agreed = agree_on(group, fetched); !agreed) {
        return agreed.error();
    }
    Result<LoadedCheckpoint> loaded = load_copies(memory_, place_, candidate, *std::move(manifest));
    const Result<void> done = loaded ? Result<void>() : Result<void>(loaded.error());
    if (const Result<void> agreed = agree_on(group, done); !agreed) {
        return agreed.error();
    }
    if (const std::string line = keep(memory_, place_, candidate, nodes); !line.empty()) {
        say_(line);
    }
    return loaded;
}

}  // namespace ddprun::worker
