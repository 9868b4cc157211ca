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

std::vector<MemoryCandidate> candidates_among(const std::vector<NodeCopies>& nodes) {
    std::map<std::pair<Generation, std::int64_t>, MemoryCandidate> found;
    for (std::size_t node = 0; node < nodes.size(); ++node) {
        for (const MemoryStep& step : nodes[node].steps) {
            const auto manifest = std::ranges::find(step.files, kManifestName, &MemoryFile::name);
            if (manifest != step.files.end()) {
                found.emplace(std::pair(step.generation, step.step),
                              MemoryCandidate{.generation = step.generation,
                                              .step = step.step,
                                              .manifest_node = node,
                                              .manifest = *manifest});
            }
        }
    }
    std::vector<MemoryCandidate> candidates;
    for (auto newest = found.rbegin(); newest != found.rend(); ++newest) {
        candidates.push_back(std::move(newest->second));
    }
    return candidates;
}

Result<std::vector<std::vector<std::size_t>>> holders_of(const Manifest& manifest,
                                                         const std::vector<NodeCopies>& nodes) {
    std::vector<std::vector<std::size_t>> holders(manifest.files.size());
    for (std::size_t i = 0; i < manifest.files.size(); ++i) {
        for (std::size_t node = 0; node < nodes.size(); ++node) {
            const bool has_it = std::ranges::any_of(nodes[node].steps, [&](const MemoryStep& step) {
                return step.generation == manifest.info.generation &&
                       step.step == manifest.info.step && has_file(step, manifest.files[i]);
            });
            if (has_it) {
                holders[i].push_back(node);
            }
        }
        if (holders[i].empty()) {
            return Error{ErrorCode::NotFound,
                         fmt::format("no node has {} of step {} in memory", manifest.files[i].name,
                                     manifest.info.step)};
        }
    }
    return holders;
}

}  // namespace ddprun::worker
