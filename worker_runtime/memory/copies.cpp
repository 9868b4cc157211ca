#include "worker_runtime/memory/copies.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

namespace ddprun::worker {

namespace {

bool has_file(const MemoryStep& step, const ManifestFile& file) {
    return std::ranges::any_of(step.files, [&](const MemoryFile& one) {
        return one.name == file.name && one.size == file.size && one.xxh3_128 == file.xxh3_128;
    });
}

bool has_manifest(const MemoryStep& step) {
    return std::ranges::any_of(step.files,
                               [](const MemoryFile& file) { return file.name == kManifestName; });
}

}  // namespace

std::vector<MemoryCandidate> candidates_among(const std::vector<NodeCopies>& nodes) {
    std::map<std::pair<std::uint64_t, std::int64_t>, std::size_t> found;
    for (std::size_t node = 0; node < nodes.size(); ++node) {
        for (const MemoryStep& step : nodes[node].steps) {
            if (has_manifest(step)) {
                found.emplace(std::pair(step.generation.value(), step.step), node);
            }
        }
    }
    std::vector<MemoryCandidate> candidates;
    for (auto newest = found.rbegin(); newest != found.rend(); ++newest) {
        candidates.push_back({.generation = Generation(newest->first.first),
                              .step = newest->first.second,
                              .manifest_node = newest->second});
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
