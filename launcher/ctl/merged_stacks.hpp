#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddprun::launcher {

/// The text that ddprun-stacks has written of one rank.
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
/// of system calls; the largest number of ranks comes first. A rank's most telling part counts:
/// Python's stacks, else the native ones, else what the kernel says of its threads. Pure.
[[nodiscard]] std::vector<MergedStacks> merge_stacks(const std::vector<RankStacks>& stacks);

/// The stacks of several nodes, one after the other: the text that merged_stacks_text() makes of
/// each node, and lines of the programs that have passed it on.
struct StacksOfNodes {
    std::vector<MergedStacks> merged;  ///< anew, over all nodes
    std::vector<std::string> notices;  ///< each different one once
};
/// `text` is not trusted: what is no such text is a notice. Pure.
[[nodiscard]] StacksOfNodes merge_nodes(std::string_view text);

/// For people: "126 ranks (0-125): Python's stacks" and so on.
[[nodiscard]] std::string merged_stacks_text(const std::vector<MergedStacks>& merged);

}  // namespace ddprun::launcher
