#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "base/tagged.hpp"

/// The launcher's choices for each worker of this node. Values only.
namespace ddprun::agent {

/// The place of a worker on its node.
struct WorkerPlacement {
    /// The one device that it sees; then it is told to be local rank 0. Unset: as inherited.
    std::optional<std::string> only_device;
    std::vector<int> cpus;  ///< the kernel's numbers; empty: as inherited
    int numa_node = 0;      ///< near which these are; for people
};

/// The places that the streams of one local rank go to besides their log files. A stream that is
/// neither shown nor tee'd goes to its file only.
struct OutputChoice {
    bool shows_stdout = true;
    bool shows_stderr = true;
    bool is_teed_stdout = false;  ///< shown with torchrun's prefix even where `prefixes` is off
    bool is_teed_stderr = false;
    /// stdout and stderr are one stream, in the order in which the worker writes to them. A merged
    /// stream is not tee'd, and both are shown or none.
    bool is_merged = false;
    /// Other workers of the node are shown, too: the console gets whole lines.
    bool keeps_lines = false;

    [[nodiscard]] bool is_shown() const {
        return shows_stdout || shows_stderr || is_teed_stdout || is_teed_stderr;
    }
};

/// Whose streams are shown, by global rank, whatever the choice of the local one.
struct RanksFilter {
    std::vector<int> ranks;  ///< ascending
    bool has_last = false;   ///< the highest of the generation, too

    /// An empty one shows all.
    [[nodiscard]] bool shows(Rank rank, int world_size) const {
        return (ranks.empty() && !has_last) || (has_last && rank.value() == world_size - 1) ||
               std::binary_search(ranks.begin(), ranks.end(), rank.value());
    }

    bool operator==(const RanksFilter&) const = default;
};

/// Which network interface NCCL and Gloo are told to use.
struct InterfaceChoice {
    std::string name;           ///< empty: not known yet, or it cannot be known
    bool follows_link = false;  ///< the name is that of the way to the rendezvous
    bool sets_nccl = true;      ///< false: the user has set NCCL_SOCKET_IFNAME
    bool sets_gloo = true;      ///< false: the user has set GLOO_SOCKET_IFNAME

    bool operator==(const InterfaceChoice&) const = default;
};

}  // namespace ddprun::agent
