#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/instant.hpp"
#include "base/os/unique_fd.hpp"

namespace ddprun::agent {

/// The flight recorders of workers: PyTorch's record of the last collectives of NCCL. A worker that
/// was started with TORCH_NCCL_DEBUG_INFO_PIPE_FILE reads a named pipe and writes its record to a
/// file when a byte comes. Nothing here waits for a worker but collect(), and that to a deadline.
class FlightRecorders {
public:
    /// Records go to `folder`, those of more than `bytes_max` are left where they are.
    FlightRecorders(std::string folder, std::int64_t bytes_max);

    /// Asks the worker of `rank`, one of `processes`, for its record, if it has a recorder. The
    /// outcome is written to `file`.
    void ask(int rank, const std::vector<int>& processes, int file);

    /// Copies each record once it is written, as `<folder>/nccl_trace_rank_<rank>`: a prefix and a
    /// rank, as PyTorch's analyzer wants it. Those that are missing at `deadline` are given up.
    void collect(Instant deadline);

private:
    struct Asked {
        int rank = 0;
        int file = -1;
        std::string record;  ///< where the worker writes
    };

    [[nodiscard]] std::string press(const std::string& pipe);
    [[nodiscard]] bool watch(const std::string& record);
    void take_events();
    [[nodiscard]] std::string keep(const Asked& asked);

    std::string folder_;
    std::int64_t bytes_max_;
    UniqueFd events_;
    std::map<int, std::string> watched_;  ///< folders, by watch
    std::vector<Asked> asked_;            ///< that have not answered
};

}  // namespace ddprun::agent
