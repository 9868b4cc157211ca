#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"
#include "worker_runtime/checkpoint/manifest.hpp"
#include "worker_runtime/comm/process_group.hpp"

/// Ranks send each other how their part of a save went. Every rank calls the same function.
namespace ddprun::worker {

/// Rank 0's outcome, on every rank.
[[nodiscard]] Result<std::string> from_rank_0(ProcessGroup& group, const Result<std::string>& own);

/// The files that all ranks have written, by rank; the error of the first rank that has one.
[[nodiscard]] Result<std::vector<ManifestFile>> gather_files(
    ProcessGroup& group, const Result<std::vector<ManifestFile>>& own);

}  // namespace ddprun::worker
