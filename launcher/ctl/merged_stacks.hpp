#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddprun::launcher {

/// What ddprun-stacks has written of one rank.
struct RankStacks {
    int rank = 0;
    std::string text;
};

/// Ranks whose stacks are equal.
struct MergedStacks {
    std::vector<int> ranks;  ///< ascending
    std::string title;       ///< what they are: Python's, native, the kernel's
    std::string text;        ///< those of the first of them
};

/// Merges what is equal but for the numbers of processes and threads, for addresses and arguments
/// of system calls; the largest number of ranks comes first. Of each rank that counts which tells
/// most: Python's stacks, else the native ones, else what the kernel says of its threads. Pure.
[[nodiscard]] std::vector<MergedStacks> merge_stacks(const std::vector<RankStacks>& stacks);

/// What several nodes have shown, one after the other: of each what merged_stacks_text() makes, and
/// lines of who has passed it on.
struct StacksOfNodes {
    std::vector<MergedStacks> merged;  ///< anew, over all nodes
    std::vector<std::string> notices;  ///< each different one once
};
/// `text` is not trusted: what is no such text is a notice. Pure.
[[nodiscard]] StacksOfNodes merge_nodes(std::string_view text);

/// For people: "126 ranks (0-125): Python's stacks" and so on.
[[nodiscard]] std::string merged_stacks_text(const std::vector<MergedStacks>& merged);

}  // namespace ddprun::launcher
