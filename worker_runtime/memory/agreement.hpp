#pragma once

#include <optional>
#include <string>
#include <vector>

/// Whether the ranks of a training keep its checkpoints in memory. Pure.
namespace ddprun::worker {

/// Why a rank has no connection: ddprun has named no socket.
inline constexpr const char* kNoMemory = "its node keeps no checkpoints";

/// The connection of one rank to its node's ddprun-memory.
struct MemoryRank {
    bool has_memory = false;
    std::string endpoint;  ///< of the node's program towards others; empty: none
    int group_rank = 0;
    std::string why;  ///< it has no connection
};

/// As a rank sends it to the others.
[[nodiscard]] std::string text_of(const MemoryRank& rank);

struct MemoryAgreement {
    bool is_kept = false;  ///< every rank has a connection
    std::string line;      ///< for people, if only some ranks have one, or a connection failed
    std::string endpoint;  ///< of the partner; empty: there is none
};

/// The same answer on every rank, but for its own partner. `texts` are those of all ranks, by rank;
/// `partner` is the group rank of this rank's partner.
[[nodiscard]] MemoryAgreement agreement_of(const std::vector<std::string>& texts,
                                           const std::optional<int>& partner);

}  // namespace ddprun::worker
