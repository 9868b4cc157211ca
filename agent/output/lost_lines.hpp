#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "base/log_limits.hpp"
#include "base/tagged.hpp"

namespace ddprun::agent {

/// The lines that the logs of one rank lack.
struct LostLog {
    int rank = 0;
    std::uint64_t lines = 0;
    std::string why;  ///< of the last ones: the system's words

    bool operator==(const LostLog&) const = default;
};

/// Counts the lines that could not be written to workers' logs, by rank, over all generations of a
/// run, for the first LogLimits::lost_ranks_max ranks that lose some. Any thread.
class LostLines {
public:
    /// `lost` were not written, for that reason. A part of a line counts once its end is lost, too,
    /// or as one if nothing else of that rank is.
    void add(Rank rank, std::string_view lost, const Error& error);

    /// By rank.
    [[nodiscard]] std::vector<LostLog> told() const;

private:
    mutable std::mutex mutex_;
    std::map<int, LostLog> lost_;
    LogLimits limits_;
};

/// "rank 3: 1,204 lines of its log were lost: No space left on device"
[[nodiscard]] std::string lost_text(const LostLog& lost);

/// The same of the worker that lost most, and how many others have; empty: no line was lost.
[[nodiscard]] std::string lost_text(const std::vector<LostLog>& lost);

}  // namespace ddprun::agent
