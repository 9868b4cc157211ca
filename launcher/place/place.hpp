#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/instant.hpp"
#include "base/result.hpp"
#include "launcher/surroundings/surroundings.hpp"

namespace ddprun::launcher {

/// The job that this process belongs to, as a scheduler describes it. Nothing is asked of the
/// scheduler itself: environment and files are enough.
struct Place {
    std::string job;  ///< for people: "slurm job 42.0"
    /// The same on every node of this job, and on no other's: "42.0". Empty: not told.
    std::string job_id;
    std::string cluster;  ///< other clusters count their jobs, too; empty: not told
    /// The scheduler has started this process, or one that started it, on every node. If not, it is
    /// one of a kind: a batch script on the first node, a shell on a machine that may be none of
    /// the job's.
    bool is_on_every_node = true;
    bool is_on_node = true;  ///< this machine is one of the job's
    int nodes = 1;           ///< 0: not told, and there may be several
    int node_rank = 0;
    std::string node;           ///< this one, as the scheduler calls it; may be empty
    std::string endpoint_host;  ///< a name of the first node; empty: not told
    std::uint16_t endpoint_port = 0;
    int tasks = 1;       ///< processes that the scheduler has started like this one, on all
    int tasks_here = 1;  ///< of these on this node
    int task_here = 0;   ///< which of them this one is
    /// The same for these and for no others on this node. Empty: not told, nor is `task_here`.
    std::string tasks_id;
    std::optional<int> gpus;   ///< of this node, given to the job; none: not told
    std::optional<int> cpus;   ///< of this node, given to the job; none: not told
    std::string topology_key;  ///< nodes with the same one are near each other; empty: not told
    int restarts = 0;          ///< how often the scheduler has put the job back into its queue
    std::optional<std::int64_t> ends_at;    ///< its time limit, in Unix time; none: not told
    std::optional<Milliseconds> kill_wait;  ///< its SIGTERM to its SIGKILL, usually; none: unknown
    /// The command that starts a process on every node of the job with all that the job has there:
    /// to be written before "ddprun". Empty: the scheduler has done so.
    std::string start_line;
    /// To be written behind "ddprun" there, with a blank before it: what other nodes are not told.
    std::string start_flags;
    /// The flag that makes it give more CPUs, a number behind it if it ends with '='; empty: none.
    std::string cpus_flag;
};

/// The command to write in place of "ddprun" to start it on every node.
[[nodiscard]] std::string start_command(const Place& place);

/// The place that `surroundings` show; none if no scheduler is known. Fails with a line for the
/// user if a scheduler's variables contradict each other or cannot be read.
[[nodiscard]] Result<std::optional<Place>> find_place(const Surroundings& surroundings);

}  // namespace ddprun::launcher
