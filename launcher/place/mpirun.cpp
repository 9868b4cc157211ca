#include <optional>
#include <string>

#include <fmt/format.h>

#include "base/limits.hpp"
#include "launcher/place/schedulers.hpp"
#include "launcher/place/variables.hpp"

namespace ddprun::launcher {

namespace {

/// The names that an mpirun gives its variables.
struct Dialect {
    const char* size;
    const char* rank;
    const char* local_size;
    const char* local_rank;
    const char* id;       ///< of all that it has started together
    const char* id_else;  ///< the same, in other versions
    const char* node;     ///< as it calls this node
    const char* one_per_node;
    const char* cpus_flag;
};

/// Open MPI; Hydra, which is that of MPICH and Intel MPI; PALS of Cray.
constexpr Dialect kDialects[] = {
    {.size = "OMPI_COMM_WORLD_SIZE",
     .rank = "OMPI_COMM_WORLD_RANK",
     .local_size = "OMPI_COMM_WORLD_LOCAL_SIZE",
     .local_rank = "OMPI_COMM_WORLD_LOCAL_RANK",
     .id = "PMIX_NAMESPACE",
     .id_else = "OMPI_MCA_ess_base_jobid",
     .node = "PMIX_HOSTNAME",
     .one_per_node = kOpenMpiOnePerNode,
     .cpus_flag = "--bind-to none"},
    {.size = "PMI_SIZE",
     .rank = "PMI_RANK",
     .local_size = "MPI_LOCALNRANKS",
     .local_rank = "MPI_LOCALRANKID",
     .id = "I_MPI_HYDRA_UUID",
     .id_else = "",
     .node = "PMI_HOSTNAME",
     .one_per_node = "mpiexec -n {0} -ppn 1",
     .cpus_flag = "-bind-to none"},
    {.size = "PMI_SIZE",
     .rank = "PMI_RANK",
     .local_size = "PMI_LOCAL_SIZE",
     .local_rank = "PMI_LOCAL_RANK",
     .id = "",
     .id_else = "",
     .node = "",
     .one_per_node = "mpiexec -n {0} --ppn 1 --cpu-bind none",
     .cpus_flag = "--cpu-bind none"},
};

class Mpirun {
public:
    Mpirun(const Dialect& dialect, const Surroundings& surroundings)
        : dialect_(dialect), variables_(surroundings) {}

    [[nodiscard]] bool is_there() const {
        return variables_.has(dialect_.size) && variables_.has(dialect_.local_size);
    }

    [[nodiscard]] Result<void> take(std::optional<Place>& place) {
        if (Result<void> counted = count(); !counted) {
            return counted;
        }
        const bool is_in_job = place.has_value();
        if (!is_in_job) {
            place.emplace();
            place->job = "mpirun";
        } else if (place->tasks == size_ && place->tasks_here == local_size_) {
            return {};  // A scheduler that starts processes of MPI itself, such as srun.
        }
        place->is_on_every_node = true;
        place->is_on_node = true;
        take_nodes(*place);
        name_tasks(is_in_job, *place);
        place->start_line =
            fmt::format(fmt::runtime(dialect_.one_per_node),
                        place->nodes == 0 ? "NODES" : fmt::format("{}", place->nodes));
        place->start_flags.clear();
        place->cpus_flag = dialect_.cpus_flag;
        return {};
    }

private:
    [[nodiscard]] Result<void> count() {
        const std::size_t most = Limits{}.nodes_max * static_cast<std::size_t>(Limits{}.slots_max);
        const Result<int> size = variables_.small({dialect_.size}, most, 1);
        const Result<int> local_size = variables_.small(
            {dialect_.local_size}, static_cast<std::size_t>(Limits{}.slots_max), 1);
        if (!size || !local_size) {
            return !size ? size.error() : local_size.error();
        }
        if (*size < 1 || *local_size < 1 || *local_size > *size) {
            return Error{ErrorCode::InvalidArgument,
                         fmt::format("{}={} and {}={}: of all processes some are here",
                                     dialect_.size, *size, dialect_.local_size, *local_size)};
        }
        size_ = *size;
        local_size_ = *local_size;
        const Result<int> rank =
            variables_.small({dialect_.rank}, static_cast<std::size_t>(size_) - 1, 0);
        const Result<int> local_rank =
            variables_.small({dialect_.local_rank}, static_cast<std::size_t>(local_size_) - 1, 0);
        if (!rank || !local_rank) {
            return !rank ? rank.error() : local_rank.error();
        }
        rank_ = *rank;
        local_rank_ = *local_rank;
        return {};
    }

    /// Open MPI before 5 gives the number of nodes. Elsewhere it is what the sizes allow: with
    /// several processes here there may be fewer on others.
    void take_nodes(Place& place) const {
        const int in_job = place.nodes;
        const int even = size_ % local_size_ == 0 ? size_ / local_size_ : 0;
        const Result<int> told =
            variables_.small({"OMPI_MCA_orte_num_nodes"}, Limits{}.nodes_max, even);
        if (local_size_ == size_) {
            place.nodes = 1;
        } else if (in_job < 2 || (told && *told > 1 && *told < in_job)) {
            place.nodes = told && *told > 1 ? *told : 0;
        }
        if (place.nodes != in_job) {
            // Some of the job's nodes: whether the first is one of them is not told.
            place.endpoint_host.clear();
            place.node_rank = place.nodes == 1 ? 0 : rank_ / local_size_;
        }
    }

    void name_tasks(bool is_in_job, Place& place) const {
        const std::optional<Variable> id = variables_.first_of({dialect_.id, dialect_.id_else});
        place.tasks_id = id ? id->value : is_in_job ? place.job_id : "";
        place.node = variables_.text(dialect_.node);
        place.tasks = size_;
        place.tasks_here = local_size_;
        place.task_here = local_rank_;
    }

    const Dialect& dialect_;
    const Variables variables_;
    int size_ = 1;
    int rank_ = 0;
    int local_size_ = 1;
    int local_rank_ = 0;
};

}  // namespace

Result<void> take_mpirun(const Surroundings& surroundings, std::optional<Place>& place) {
    for (const Dialect& dialect : kDialects) {
        Mpirun mpirun(dialect, surroundings);
        if (mpirun.is_there()) {
            return mpirun.take(place);
        }
    }
    return {};
}

}  // namespace ddprun::launcher
