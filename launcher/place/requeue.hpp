#pragma once

#include <string>
#include <string_view>

#include "launcher/place/place.hpp"

/// --requeue: a batch job of Slurm that has left in time goes back into the queue. Pure.
namespace ddprun::launcher {

/// How this node came to leave its job.
enum class Departure {
    None,      ///< it did not, or the job had ended before
    WholeJob,  ///< by a signal or a time limit, which are meant for all nodes
    ThisNode,  ///< by a notice
};

struct RequeueCase {
    Departure departure = Departure::None;
    int nodes_min = 1;  ///< that the job needs
    int most = 0;       ///< of --requeue
};

enum class RequeueChoice {
    No,
    Yes,
    UsedUp,  ///< it would be, but was so often enough
};

/// One node asks for it: the first, or the one without which the job cannot go on.
[[nodiscard]] RequeueChoice choose_requeue(const Place& place, const RequeueCase& job);

/// Value of `NAME=VALUE` in what `scontrol show job` prints; empty: it has none.
[[nodiscard]] std::string field_of_job(std::string_view shown, std::string_view name);

/// Why Slurm would not put a job back of which `scontrol show job` prints this; empty: it would.
[[nodiscard]] std::string why_not_requeued(std::string_view shown);

}  // namespace ddprun::launcher
