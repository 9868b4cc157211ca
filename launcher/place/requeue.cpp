#include "launcher/place/requeue.hpp"

#include <fmt/format.h>

namespace ddprun::launcher {

RequeueChoice choose_requeue(const Place& place, const RequeueCase& job) {
    const bool is_asked_for =
        (job.departure == Departure::WholeJob && place.node_rank == 0) ||
        (job.departure == Departure::ThisNode && place.nodes - 1 < job.nodes_min);
    if (!is_asked_for) {
        return RequeueChoice::No;
    }
    return place.restarts < job.most ? RequeueChoice::Yes : RequeueChoice::UsedUp;
}

std::string field_of_job(std::string_view shown, std::string_view name) {
    const std::string wanted = fmt::format("{}=", name);
    for (std::size_t at = 0; (at = shown.find(wanted, at)) != std::string_view::npos; ++at) {
        const bool is_whole = at == 0 || shown[at - 1] == ' ' || shown[at - 1] == '\n';
        if (is_whole) {
            const std::size_t first = at + wanted.size();
            return std::string(shown.substr(first, shown.find_first_of(" \n", first) - first));
        }
    }
    return {};
}

std::string why_not_requeued(std::string_view shown) {
    if (field_of_job(shown, "BatchFlag") == "0") {
        return "it is no batch job, and Slurm requeues no other; start it with sbatch";
    }
    if (field_of_job(shown, "Requeue") == "0") {
        return "it may not be requeued; start it with sbatch --requeue";
    }
    return {};
}

}  // namespace ddprun::launcher
