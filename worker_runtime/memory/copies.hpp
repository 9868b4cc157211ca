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
};

/// A checkpoint of which at least one node has the manifest.
struct MemoryCandidate {
    Generation generation;
    std::int64_t step = 0;
    std::size_t manifest_node = 0;  ///< the first node that has it
    MemoryFile manifest;            ///< as that node lists it
};

/// The newest comes first: that of the latest generation, and of its steps the highest.
[[nodiscard]] std::vector<MemoryCandidate> candidates_among(const std::vector<NodeCopies>& nodes);

/// For each of the manifest's files the nodes that have it, at least one; files of another size or
/// checksum do not count. Fails with the name of a file that no node has.
[[nodiscard]] Result<std::vector<std::vector<std::size_t>>> holders_of(
    const Manifest& manifest, const std::vector<NodeCopies>& nodes);

}  // namespace ddprun::worker
