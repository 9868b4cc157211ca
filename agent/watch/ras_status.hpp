#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/watch/hang_notice.hpp"
#include "base/instant.hpp"

namespace ddprun::agent {

/// One rank of a communicator, as NCCL's RAS reports it.
struct RasRank {
    int rank = 0;
    std::string host;                             ///< an address
    std::map<std::string, std::uint64_t> counts;  ///< launched so far, by the collective's name

    bool operator==(const RasRank&) const = default;
};

struct RasCommunicator {
    std::string id;
    int size = 0;
    std::vector<RasRank> ranks;  ///< those that have answered
};

/// Parses what RAS (NCCL 2.28.7 and later) answers to VERBOSE STATUS in the format JSON, with what
/// stands before it. Returns nothing if `answer` is something else.
[[nodiscard]] std::optional<std::vector<RasCommunicator>> ras_status_from(std::string_view answer);

/// Finds communicators whose ranks have not launched the same, and stand still. Pure.
class RasWatch {
public:
    /// Returns the sign of a communicator that has stood still for `after`. `world_size` shows
    /// which communicator is of all ranks, numbered as these.
    [[nodiscard]] std::optional<HangSeen> look(Instant now, Milliseconds after, int world_size,
                                               const std::vector<RasCommunicator>& status);

    /// Other workers start.
    void begin() { still_.clear(); }

private:
    struct Still {
        std::vector<RasRank> ranks;
        Instant since{};
    };
    std::map<std::string, Still> still_;  ///< by the communicator
};

}  // namespace ddprun::agent
