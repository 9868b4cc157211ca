#pragma once

#include <string>
#include <vector>

namespace ddprun::launcher {

struct RendezvousHere {
    std::vector<std::string> places;  ///< each a list of endpoints, like that of --rdzv-endpoint
    bool is_of_job = false;           ///< those of runs of the job that are at work here
};

/// The rendezvous that this user's processes on this machine know of: first those of the runs in
/// `log_dir` and of others at work here, then those of the daemons here, which have jobs without a
/// folder, too. One that goes by several names stands there once. `job`: if runs of that job are at
/// work here, only theirs. Blocks as long as the resolver does if ports are equal and names differ.
[[nodiscard]] RendezvousHere rendezvous_here(const std::string& log_dir, const std::string& job);

/// Whether both lists have an endpoint of one daemon, as far as names and this machine's addresses
/// show. Blocks as above.
[[nodiscard]] bool is_same_rendezvous(const std::string& one, const std::string& other);

}  // namespace ddprun::launcher
