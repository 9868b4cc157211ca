#include "worker_runtime/memory/rank_files.hpp"

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "worker_runtime/checkpoint/file_io.hpp"
#include "worker_runtime/checkpoint/safetensors.hpp"

namespace ddprun::worker {

namespace {

/// A file's bytes. `pieces` point into `plan`, and into the tensors.
struct PlannedFile {
    SafetensorsPlan plan;
    std::vector<std::span<const std::byte>> pieces;
};

Result<std::unique_ptr<PlannedFile>> plan_file(const TensorFile& file) {
    Result<SafetensorsPlan> plan = plan_safetensors(file.tensors, file.prefix);
    if (!plan) {
        return plan.error();
    }
    auto planned = std::make_unique<PlannedFile>();
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

}  // namespace

Result<RankFiles> write_files(CheckpointMemory& memory, const std::vector<TensorFile>& files) {
    if (files.empty()) {
        return RankFiles();
    }
    std::vector<std::unique_ptr<PlannedFile>> planned;
    std::vector<MemoryFile> wanted;
    for (const TensorFile& file : files) {
        Result<std::unique_ptr<PlannedFile>> one = plan_file(file);
        if (!one) {
            return one.error();
        }
        wanted.push_back({.name = file.name, .size = size_of(**one)});
        planned.push_back(*std::move(one));
    }
    const Result<std::vector<UniqueFd>> places = memory.begin(wanted);
    if (!places) {
        return places.error();
    }
    RankFiles written;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
        Result<ManifestFile> file = write_pieces((*places)[i].get(), wanted[i].name,
                                                 wanted[i].name + " in memory", planned[i]->pieces);
        if (!file) {
            return file.error();
        }
        written.files.push_back(*std::move(file));
    }
    Result<std::string> note = memory.written(written.files);
    if (!note) {
        return note.error();
    }
    written.note = *std::move(note);
    return written;
}

Result<void> write_manifest(CheckpointMemory& memory, const PlaceOnNode& place,
                            const std::string& manifest, bool is_isolated) {
    if (place.local_rank != 0) {
        return {};
    }
    if (is_isolated) {
        return Error{ErrorCode::Refused, "this node is isolated"};
    }
    const std::string name(kManifestName);
    const Result<std::vector<UniqueFd>> memfds =
        memory.begin({{.name = name, .size = manifest.size()}});
    if (!memfds) {
        return memfds.error();
    }
    const Result<ManifestFile> file = write_pieces(memfds->front().get(), name, name + " in memory",
                                                   {std::as_bytes(std::span(manifest))});
    if (!file) {
        return file.error();
    }
    const Result<std::string> note = memory.written({*file});
    return note ? Result<void>() : Result<void>(note.error());
}

Result<void> seal(CheckpointMemory& memory, const PlaceOnNode& place) {
    return place.local_rank == 0 ? memory.seal() : Result<void>();
}

std::string copies_text(CheckpointMemory& memory, const PlaceOnNode& place) {
    MemoryReply own;
    if (place.local_rank == 0) {
        Result<std::vector<MemoryStep>> steps = memory.list();
        own.endpoint = memory.endpoint();
        if (steps) {
            own.steps = *std::move(steps);
        } else {
            own.note = steps.error().what;
        }
    }
    return encode(own);
}

Result<std::string> read_manifest(CheckpointMemory& memory, const PlaceOnNode& place,
                                  const MemoryCandidate& candidate) {
    if (static_cast<int>(candidate.manifest_node) != place.rank) {
        return std::string();
    }
    const Result<OpenFile> file = memory.open(candidate.key, candidate.manifest);
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

Result<Manifest> fetch_missing(CheckpointMemory& memory, const PlaceOnNode& place,
                               const MemoryCandidate& candidate, const std::string& text,
                               const std::vector<NodeCopies>& nodes) {
    Result<Manifest> manifest = manifest_of(candidate, text);
    if (!manifest) {
        return manifest;
    }
    const Result<std::vector<MemoryFetch>> fetches =
        fetches_of(candidate.key, *manifest, nodes, place);
    if (!fetches) {
        return fetches.error();
    }
    for (const MemoryFetch& fetch : *fetches) {
        const Result<void> fetched =
            memory.fetch(candidate.key, manifest->files[fetch.file], nodes[fetch.node].endpoint);
        if (!fetched) {
            return fetched.error();
        }
    }
    return manifest;
}

Result<LoadedCheckpoint> load_copies(CheckpointMemory& memory, const PlaceOnNode& place,
                                     const MemoryCandidate& candidate, Manifest manifest) {
    const auto open = [&](const ManifestFile& listed) {
        return memory.open(candidate.key, listed);
    };
    return load_files(std::move(manifest), open,
                      {.reader = static_cast<std::size_t>(place.local_rank),
                       .readers = static_cast<std::size_t>(place.local_world_size)});
}

std::string keep(CheckpointMemory& memory, const PlaceOnNode& place,
                 const MemoryCandidate& candidate, const std::vector<NodeCopies>& nodes) {
    if (place.local_rank != 0) {
        return {};
    }
    Result<void> kept = memory.seal(candidate.key);
    if (kept && !memory.endpoint().empty()) {
        kept = memory.fetch(candidate.key, candidate.manifest,
                            nodes[candidate.manifest_node].endpoint);
    }
    return kept ? std::string()
                : fmt::format(
                      "rank {}: until the next save no other machine than those that wrote step {} "
                      "in memory can put it together: {}",
                      place.rank, candidate.key.step, kept.error().what);
}

}  // namespace ddprun::worker
