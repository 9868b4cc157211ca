#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/tagged.hpp"
#include "worker_runtime/checkpoint/manifest.hpp"
#include "worker_runtime/memory/protocol.hpp"

/// Which checkpoint can be put together from what the nodes have in memory, and from whom. Pure.
namespace ddprun::worker {

/// One node's files.
struct NodeCopies {
    std::string endpoint;
    std::vector<MemoryStep> steps;
    std::string why_unlisted;  ///< its files are not known; empty: they are
};

/// A checkpoint of which at least one node has the manifest.
struct MemoryCandidate {
    StepKey key;
    std::size_t manifest_node = 0;  ///< the first node that has it
    MemoryFile manifest;            ///< as that node lists it
};

/// The place of a rank among those of its node, whose first rank is `rank - local_rank`.
struct PlaceOnNode {
    int rank = 0;
    int local_rank = 0;
    int local_world_size = 1;
};

/// One file that a rank copies from another node.
struct MemoryFetch {
    std::size_t file = 0;  ///< of the manifest
    std::size_t node = 0;

    bool operator==(const MemoryFetch&) const = default;
};

/// Each node's files, from the texts of all ranks, by rank; only first ranks of nodes have files.
[[nodiscard]] Result<std::vector<NodeCopies>> nodes_of(const std::vector<std::string>& texts);

/// The line for people about the first node whose files are not known; empty if all are.
[[nodiscard]] std::string unlisted_line(const std::vector<NodeCopies>& nodes);

/// Those that are at least `at_least`. The newest comes first: that of the latest generation, of
/// its steps the highest, and of its saves the last.
[[nodiscard]] std::vector<MemoryCandidate> candidates_among(const std::vector<NodeCopies>& nodes,
                                                            const SavedStep& at_least = {});

/// The candidate's manifest, with its number of the save. A manifest of another step or generation
/// is an error.
[[nodiscard]] Result<Manifest> manifest_of(const MemoryCandidate& candidate,
                                           const std::string& text);

/// For each of the manifest's files the nodes that have it of that save, at least one; files of
/// another size or checksum do not count. Fails with the name of a file that no node has.
[[nodiscard]] Result<std::vector<std::vector<std::size_t>>> holders_of(
    const StepKey& key, const Manifest& manifest, const std::vector<NodeCopies>& nodes);

/// The files that the rank at `place` copies: the ranks of a node share out those that it lacks,
/// and several nodes that lack a file ask different ones. Fails as holders_of().
[[nodiscard]] Result<std::vector<MemoryFetch>> fetches_of(const StepKey& key,
                                                          const Manifest& manifest,
                                                          const std::vector<NodeCopies>& nodes,
                                                          const PlaceOnNode& place);

}  // namespace ddprun::worker
