#include "worker_runtime/state/memory_tier.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/runtime_limits.hpp"
#include "worker_runtime/checkpoint/safetensors.hpp"
#include "worker_runtime/comm/texts.hpp"
#include "worker_runtime/comm/votes.hpp"
#include "worker_runtime/state/dtype_names.hpp"
#include "worker_runtime/state/written_files.hpp"

namespace ddprun::worker {

namespace {

/// A file to be. `plan` points into `views`, whose elements do not move with it.
struct PlannedFile {
    std::vector<TensorView> views;
    SafetensorsPlan plan;
    std::vector<std::span<const std::byte>> pieces;  ///< point into `plan.header`, too
};

Result<std::unique_ptr<PlannedFile>> plan_file(const CheckpointShare::File& file) {
    Result<std::vector<TensorView>> views = views_of(file.tensors);
    if (!views) {
        return views.error();
    }
    auto planned = std::make_unique<PlannedFile>();
    planned->views = *std::move(views);
    Result<SafetensorsPlan> plan = plan_safetensors(planned->views, file.prefix);
    if (!plan) {
        return plan.error();
    }
    planned->plan = *std::move(plan);
    planned->pieces = pieces_of(planned->plan);
    return planned;
}

std::uint64_t size_of(const PlannedFile& file) {
    std::uint64_t bytes = 0;
    for (const std::span<const std::byte> piece : file.pieces) {
        bytes += piece.size();
    }
    return bytes;
}

/// A rank's connection and its place, as the ranks send it to each other.
struct RankOfNode {
    bool has_memory = false;
    std::string endpoint;
    int group_rank = 0;
    std::string why;  ///< it has no connection
};

std::string text_of(const RankOfNode& rank) {
    return nlohmann::json({rank.has_memory, rank.endpoint, rank.group_rank, rank.why})
        .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// Its inverse, for a text of this program's own.
RankOfNode rank_of(const std::string& text) {
    const nlohmann::json json = nlohmann::json::parse(text);
    return {.has_memory = json[0].get<bool>(),
            .endpoint = json[1].get<std::string>(),
            .group_rank = json[2].get<int>(),
            .why = json[3].get<std::string>()};
}

}  // namespace

MemoryTier::MemoryTier(CheckpointMemory memory, const WorkerEnvironment& place, Say say)
    : memory_(std::move(memory)),
      generation_(place.generation),
      rank_(place.rank.value()),
      local_rank_(place.slot.value()),
      local_world_size_(place.local_world_size),
      say_(std::move(say)) {}

Result<std::unique_ptr<MemoryTier>> MemoryTier::connect(ProcessGroup& group,
                                                        const WorkerEnvironment& place,
                                                        const std::string& series, Say say) {
    Result<CheckpointMemory> memory = Error{ErrorCode::NotFound, "its node keeps no checkpoints"};
    if (!place.memory_checkpoints.empty()) {
        memory = CheckpointMemory::connect(
            place.memory_checkpoints,
            {.series = series, .rank = place.rank.value(), .generation = place.generation});
    }
    const RankOfNode own{.has_memory = memory.has_value(),
                         .endpoint = memory ? memory->endpoint() : std::string(),
                         .group_rank = place.group_rank,
                         .why = memory ? std::string() : memory.error().what};
    const Result<std::vector<std::string>> texts = gather_texts(group, text_of(own));
    if (!texts) {
        return texts.error();
    }
    std::size_t with_memory = 0;
    std::string partner;
    std::string why;
    for (std::size_t rank = 0; rank < texts->size(); ++rank) {
        const RankOfNode one = rank_of((*texts)[rank]);
        with_memory += one.has_memory ? 1 : 0;
        if (place.memory_partner == one.group_rank) {
            partner = one.endpoint;
        }
        if (!one.has_memory && why.empty()) {
            why = fmt::format("rank {}: {}", rank, one.why);
        }
    }
    if (with_memory < texts->size()) {
        if (with_memory > 0 && group.rank() == 0) {
            say(
                fmt::format("no checkpoint is kept in memory: {}; give every node "
                            "--memory-checkpoints",
                            why));
        }
        return std::unique_ptr<MemoryTier>();
    }
    auto tier = std::make_unique<MemoryTier>(*std::move(memory), place, std::move(say));
    const Result<void> agreed =
        agree_on(group, partner.empty() ? Result<void>() : tier->memory_.set_partner(partner));
    return agreed ? Result<std::unique_ptr<MemoryTier>>(std::move(tier)) : agreed.error();
}

Result<void> MemoryTier::save(ProcessGroup& group, const CheckpointShare& share,
                              const std::function<bool()>& is_isolated) {
    // Ranks wait in collectives for the one whose partner takes longest.
    const ProcessGroup::LongerWait longer(group, RuntimeLimits{}.save_wait);
    const Result<std::vector<std::string>> written =
        gather_results(group, described(share, write_files(share)));
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
    Result<void> sealed;
    if (local_rank_ == 0) {
        sealed = is_isolated() ? Error{ErrorCode::Refused, "this node is isolated"}
                               : seal(share.info.step, *manifest);
    }
    return agree_on(group, sealed);
}

Result<std::vector<ManifestFile>> MemoryTier::write_files(const CheckpointShare& share) {
    if (share.files.empty()) {
        return std::vector<ManifestFile>();
    }
    std::vector<std::unique_ptr<PlannedFile>> planned;
    std::vector<MemoryFile> wanted;
    for (const CheckpointShare::File& file : share.files) {
        Result<std::unique_ptr<PlannedFile>> one = plan_file(file);
        if (!one) {
            return one.error();
        }
        wanted.push_back({.name = file.name, .size = size_of(**one)});
        planned.push_back(*std::move(one));
    }
    const std::int64_t step = share.info.step;
    const Result<std::vector<UniqueFd>> memory = memory_.begin(step, wanted);
    if (!memory) {
        return memory.error();
    }
    std::vector<ManifestFile> files;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
        Result<ManifestFile> file = write_pieces((*memory)[i].get(), wanted[i].name,
                                                 wanted[i].name + " in memory", planned[i]->pieces);
        if (!file) {
            return file.error();
        }
        files.push_back(*std::move(file));
    }
    const Result<std::string> note = memory_.written(step, files);
    if (!note) {
        return note.error();
    }
    say_note(*note);
    return files;
}

/// A note is said once, until it is another one.
void MemoryTier::say_note(const std::string& note) {
    if (note != last_note_ && !note.empty() && local_rank_ == 0) {
        say_(fmt::format("rank {}: another node has no copy of the checkpoint in memory: {}", rank_,
                         note));
    }
    last_note_ = note;
}

Result<void> MemoryTier::seal(std::int64_t step, const std::string& manifest) {
    const std::string name(kManifestName);
    const Result<std::vector<UniqueFd>> memory =
        memory_.begin(step, {{.name = name, .size = manifest.size()}});
    if (!memory) {
        return memory.error();
    }
    const Result<ManifestFile> file = write_pieces(memory->front().get(), name, name + " in memory",
                                                   {std::as_bytes(std::span(manifest))});
    if (!file) {
        return file.error();
    }
    const Result<std::string> note = memory_.written(step, {*file});
    if (!note) {
        return note.error();
    }
    return memory_.seal(step, generation_);
}

Result<std::optional<LoadedCheckpoint>> MemoryTier::load(ProcessGroup& group,
                                                         std::int64_t at_least) {
    const Result<std::vector<NodeCopies>> nodes = gather_copies(group);
    if (!nodes) {
        return nodes.error();
    }
    for (const MemoryCandidate& candidate : candidates_among(*nodes)) {
        if (candidate.step < at_least) {
            continue;
        }
        Result<LoadedCheckpoint> loaded = load_from(group, candidate, *nodes);
        if (const Result<void> whole = group.check("loading a checkpoint from memory"); !whole) {
            return whole.error();
        }
        if (loaded) {
            return std::optional(*std::move(loaded));
        }
        // The error is the same on all ranks.
        if (group.rank() == 0) {
            say_(fmt::format("step {} in memory is passed over: {}", candidate.step,
                             loaded.error().what));
        }
    }
    return std::optional<LoadedCheckpoint>();
}

Result<std::vector<NodeCopies>> MemoryTier::gather_copies(ProcessGroup& group) {
    MemoryReply own;
    if (local_rank_ == 0) {
        Result<std::vector<MemoryStep>> steps = memory_.list();
        own.endpoint = memory_.endpoint();
        own.steps = steps ? *std::move(steps) : std::vector<MemoryStep>();
    }
    const Result<std::vector<std::string>> texts = gather_texts(group, encode(own));
    if (!texts) {
        return texts.error();
    }
    std::vector<NodeCopies> nodes;
    for (const std::string& text : *texts) {
        Result<MemoryReply> reply = decode_memory_reply(text);
        if (!reply) {
            return reply.error();
        }
        nodes.push_back({.endpoint = reply->endpoint, .steps = std::move(reply->steps)});
    }
    return nodes;
}

Result<std::string> MemoryTier::read_manifest(const MemoryCandidate& candidate) {
    if (static_cast<int>(candidate.manifest_node) != rank_) {
        return std::string();
    }
    const Result<OpenFile> file =
        memory_.open(candidate.step, candidate.generation, candidate.manifest);
    if (!file) {
        return file.error();
    }
    const Result<FileBytes> bytes = read_file(*file);
    if (!bytes) {
        return bytes.error();
    }
    const std::span<const std::byte> read = bytes->bytes();
    return std::string(reinterpret_cast<const char*>(read.data()), read.size());
}

Result<LoadedCheckpoint> MemoryTier::load_from(ProcessGroup& group,
                                               const MemoryCandidate& candidate,
                                               const std::vector<NodeCopies>& nodes) {
    const Result<std::string> own = read_manifest(candidate);
    const Result<void> read = own ? Result<void>() : Result<void>(own.error());
    if (const Result<void> agreed = agree_on(group, read); !agreed) {
        return agreed.error();
    }
    const Result<std::string> text =
        broadcast_text(group, *own, static_cast<int>(candidate.manifest_node));
    if (!text) {
        return text.error();
    }
    Result<Manifest> manifest = parse_manifest(*text);
    if (!manifest) {
        return manifest.error();
    }
    if (manifest->info.step != candidate.step ||
        manifest->info.generation != candidate.generation) {
        return Error{ErrorCode::BadMessage,
                     fmt::format("its manifest is of step {} of generation {}", manifest->info.step,
                                 manifest->info.generation.value())};
    }
    if (const Result<void> agreed = agree_on(group, fetch_missing(*manifest, nodes)); !agreed) {
        return agreed.error();
    }
    const auto open = [&](const ManifestFile& listed) {
        return memory_.open(candidate.step, candidate.generation, listed);
    };
    Result<LoadedCheckpoint> loaded =
        load_files(*std::move(manifest), open,
                   {.reader = static_cast<std::size_t>(local_rank_),
                    .readers = static_cast<std::size_t>(local_world_size_)});
    Result<void> done = loaded ? Result<void>() : Result<void>(loaded.error());
    if (done && local_rank_ == 0) {
        // Not every node has sealed it: this generation's first save would forget it there.
        done = memory_.seal(candidate.step, candidate.generation);
        keep_manifest(candidate, nodes);
    }
    const Result<void> agreed = agree_on(group, done);
    return agreed ? std::move(loaded) : Result<LoadedCheckpoint>(agreed.error());
}

/// The workers of a node share out what it lacks.
Result<void> MemoryTier::fetch_missing(const Manifest& manifest,
                                       const std::vector<NodeCopies>& nodes) {
    const Result<std::vector<std::vector<std::size_t>>> holders = holders_of(manifest, nodes);
    if (!holders) {
        return holders.error();
    }
    const auto here = static_cast<std::size_t>(rank_ - local_rank_);
    for (std::size_t i = 0; i < manifest.files.size(); ++i) {
        const std::vector<std::size_t>& nodes_with_it = (*holders)[i];
        const bool is_mine = i % static_cast<std::size_t>(local_world_size_) ==
                             static_cast<std::size_t>(local_rank_);
        if (!is_mine || std::ranges::find(nodes_with_it, here) != nodes_with_it.end()) {
            continue;
        }
        // Several nodes that lack it ask different ones.
        const std::size_t from = nodes_with_it[here % nodes_with_it.size()];
        const Result<void> fetched = memory_.fetch(manifest.info.step, manifest.info.generation,
                                                   manifest.files[i], nodes[from].endpoint);
        if (!fetched) {
            return fetched.error();
        }
    }
    return {};
}

/// A node that has joined has all files now, but not the manifest: without it the step would be
/// lost with the last node that has one.
void MemoryTier::keep_manifest(const MemoryCandidate& candidate,
                               const std::vector<NodeCopies>& nodes) {
    if (memory_.endpoint().empty()) {
        return;
    }
    const Result<void> kept =
        memory_.fetch(candidate.step, candidate.generation, candidate.manifest,
                      nodes[candidate.manifest_node].endpoint);
    if (!kept) {
        say_(
            fmt::format("rank {}: until the next save no other machine than those that wrote step "
                        "{} in memory can put it together: {}",
                        rank_, candidate.step, kept.error().what));
    }
}

}  // namespace ddprun::worker
