#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"
#include "worker_runtime/comm/process_group.hpp"

/// Texts among ranks, as bytes in tensors on the CPU: in one exchange if all are short, as an error
/// or a manifest of few files is, else in two. Every rank calls the same function.
namespace ddprun::worker {

/// Rank `root`'s text, on every rank.
[[nodiscard]] Result<std::string> broadcast_text(ProcessGroup& group, const std::string& text,
                                                 int root = 0);

/// Each rank's text, by rank.
[[nodiscard]] Result<std::vector<std::string>> gather_texts(ProcessGroup& group,
                                                            const std::string& text);

}  // namespace ddprun::worker
