#include "worker_runtime/memory/copies.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

namespace ddprun::worker {

namespace {

bool has_file(const MemoryStep& step, const MemoryFile& file) {
    return std::ranges::find(step.files, file) != step.files.end();
}

}  // namespace

Result<std::vector<NodeCopies>> nodes_of(const std::vector<std::string>& texts) {
    std::vector<NodeCopies> nodes;
    for (const std::string& text : texts) {
        Result<MemoryReply> reply = decode_memory_reply(text);
        if (!reply) {
            return reply.error();
        }
        nodes.push_back({.endpoint = reply->endpoint,
                         .steps = std::move(reply->steps),
                         .why_unlisted = reply->note});
    }
    return nodes;
}

std::string unlisted_line(const std::vector<NodeCopies>& nodes) {
    const auto unlisted = std::ranges::find_if(
        nodes, [](const NodeCopies& node) { return !node.why_unlisted.empty(); });
    return unlisted == nodes.end()
               ? std::string()
               : fmt::format(
                     "rank {}: the checkpoints in the memory of its node are not used, they "
                     "cannot be listed: {}",
                     unlisted - nodes.begin(), unlisted->why_unlisted);
}

std::vector<MemoryCandidate> candidates_among(const std::vector<NodeCopies>& nodes,
                                              const SavedStep& at_least) {
    std::map<StepKey, MemoryCandidate> found;
    for (std::size_t node = 0; node < nodes.size(); ++node) {
        for (const MemoryStep& step : nodes[node].steps) {
            const auto manifest = std::ranges::find(step.files, kManifestName, &MemoryFile::name);
            const SavedStep saved{.step = step.key.step, .save = step.key.save};
            if (manifest != step.files.end() && saved >= at_least) {
                found.emplace(
                    step.key,
                    MemoryCandidate{.key = step.key, .manifest_node = node, .manifest = *manifest});
            }
        }
    }
    std::vector<MemoryCandidate> candidates;
    for (auto newest = found.rbegin(); newest != found.rend(); ++newest) {
        candidates.push_back(std::move(newest->second));
    }
    return candidates;
}

Result<Manifest> manifest_of(const MemoryCandidate& candidate, const std::string& text) {
    Result<Manifest> manifest = parse_manifest(text);
    if (manifest && (manifest->info.step != candidate.key.step ||
                     manifest->info.generation != candidate.key.generation)) {
        return Error{ErrorCode::BadMessage,
                     fmt::format("its manifest is of step {} of generation {}", manifest->info.step,
                                 manifest->info.generation.value())};
    }
    if (manifest) {
        // Manifests of before version 3 do not have it.
        manifest->info.save = candidate.key.save;
    }
    return manifest;
}

Result<std::vector<std::vector<std::size_t>>> holders_of(const StepKey& key,
                                                         const Manifest& manifest,
                                                         const std::vector<NodeCopies>& nodes) {
    std::vector<std::vector<std::size_t>> holders(manifest.files.size());
    for (std::size_t i = 0; i < manifest.files.size(); ++i) {
        for (std::size_t node = 0; node < nodes.size(); ++node) {
            const bool has_it = std::ranges::any_of(nodes[node].steps, [&](const MemoryStep& step) {
                return step.key == key && has_file(step, manifest.files[i]);
            });
            if (has_it) {
                holders[i].push_back(node);
            }
        }
        if (holders[i].empty()) {
            return Error{ErrorCode::NotFound, fmt::format("no node has {} of step {} in memory",
                                                          manifest.files[i].name, key.step)};
        }
    }
    return holders;
}

Result<std::vector<MemoryFetch>> fetches_of(const StepKey& key, const Manifest& manifest,
                                            const std::vector<NodeCopies>& nodes,
                                            const PlaceOnNode& place) {
    const Result<std::vector<std::vector<std::size_t>>> holders = holders_of(key, manifest, nodes);
    if (!holders) {
        return holders.error();
    }
    const auto here = static_cast<std::size_t>(place.rank - place.local_rank);
    const auto ranks_here = static_cast<std::size_t>(place.local_world_size);
    std::vector<MemoryFetch> fetches;
    for (std::size_t file = 0; file < manifest.files.size(); ++file) {
        const std::vector<std::size_t>& with_it = (*holders)[file];
        const bool is_mine = file % ranks_here == static_cast<std::size_t>(place.local_rank);
        if (is_mine && std::ranges::find(with_it, here) == with_it.end()) {
            fetches.push_back({.file = file, .node = with_it[here / ranks_here % with_it.size()]});
        }
    }
    return fetches;
}

}  // namespace ddprun::worker
