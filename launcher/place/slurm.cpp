#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/limits.hpp"
#include "launcher/place/host_list.hpp"
#include "launcher/place/schedulers.hpp"
#include "launcher/place/variables.hpp"

namespace ddprun::launcher {

namespace {

/// Slurm counts down from 2^32 for what is no step of srun: the batch script, salloc's shell.
constexpr std::uint64_t kFirstStepOfSlurm = 0xfffffff0;
constexpr Milliseconds kKillWait{30000};  ///< unless a site has set another one

class Slurm {
public:
    explicit Slurm(const Surroundings& surroundings) : variables_(surroundings) {}

    [[nodiscard]] Result<std::optional<Place>> find() {
        if (!variables_.first_of({"SLURM_JOB_ID", "SLURM_JOBID"})) {
            return std::optional<Place>{};
        }
        Place place;
        for (const auto take :
             {&Slurm::take_job, &Slurm::take_end, &Slurm::take_nodes, &Slurm::take_tasks}) {
            if (const Result<void> taken = (this->*take)(place); !taken) {
                return taken.error();
            }
        }
        take_groups(place);
        take_devices(place);
        take_topology(place);
        take_start_line(place);
        return std::optional<Place>{std::move(place)};
    }

private:
    [[nodiscard]] Result<void> take_job(Place& place) {
        constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
        const Result<std::uint64_t> job =
            variables_.number({"SLURM_JOB_ID", "SLURM_JOBID"}, kMost, 0);
        const Result<std::uint64_t> step =
            variables_.number({"SLURM_STEP_ID", "SLURM_STEPID"}, kMost, kMost);
        const Result<int> restarts = variables_.small({"SLURM_RESTART_COUNT"}, 1'000'000, 0);
        if (!job || !step || !restarts) {
            return !job ? job.error() : !step ? step.error() : restarts.error();
        }
        job_ = *job;
        is_mpirun_ = variables_.has("OMPI_COMM_WORLD_SIZE") || variables_.has("MPI_LOCALNRANKS");
        place.is_on_every_node = *step < kFirstStepOfSlurm && !is_mpirun_;
        place.job_id =
            place.is_on_every_node ? fmt::format("{}.{}", job_, *step) : fmt::format("{}", job_);
        place.job = "slurm job " + place.job_id;
        place.tasks_id = place.job_id;
        place.cluster = variables_.text("SLURM_CLUSTER_NAME");
        place.restarts = *restarts;
        // A shell of salloc has the job's variables and may be on the machine where people log in.
        place.node = variables_.text("SLURMD_NODENAME");
        place.is_on_node = !place.node.empty();
        return {};
    }

    /// Slurm 23.02 and newer give the job's end, as it was when the job was started.
    [[nodiscard]] Result<void> take_end(Place& place) {
        constexpr std::uint64_t kNever = 0xfffffff0;  // what Slurm counts from here is no time
        const Result<std::uint64_t> end =
            variables_.number({"SLURM_JOB_END_TIME"}, ~std::uint64_t{0}, kNever);
        if (!end) {
            return end.error();
        }
        if (*end > 0 && *end < kNever) {
            place.ends_at = static_cast<std::int64_t>(*end);
        }
        place.kill_wait = kKillWait;
        return {};
    }

    [[nodiscard]] Result<void> take_nodes(Place& place) {
        const bool is_step = place.is_on_every_node;
        const std::optional<Variable> list =
            is_step ? variables_.first_of(
                          {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"})
                    : variables_.first_of({"SLURM_JOB_NODELIST", "SLURM_NODELIST"});
        if (!list) {
            return Error{
                ErrorCode::InvalidArgument,
                fmt::format("{}: SLURM_JOB_NODELIST is not set, so that nobody knows its nodes",
                            place.job)};
        }
        const Result<std::vector<std::string>> hosts = expand_host_list(list->value);
        if (!hosts) {
            return list->wrong(hosts.error().what);
        }
        place.nodes = static_cast<int>(hosts->size());
        const Result<int> told = variables_.small(
            {is_step ? "SLURM_STEP_NUM_NODES" : "SLURM_JOB_NUM_NODES", "SLURM_NNODES"},
            Limits{}.nodes_max, place.nodes);
        const Result<int> rank = variables_.small({"SLURM_NODEID"}, hosts->size() - 1, 0);
        if (!told || !rank) {
            return !told ? told.error() : rank.error();
        }
        if (*told != place.nodes) {
            return list->wrong(fmt::format("names {} nodes, but Slurm counts {} in {}", place.nodes,
                                           *told, place.job));
        }
        const auto own = std::find(hosts->begin(), hosts->end(), place.node);
        place.node_rank =
            is_mpirun_ && own != hosts->end() ? static_cast<int>(own - hosts->begin()) : *rank;
        place.endpoint_host = hosts->front();
        place.endpoint_port = port_of_job(job_);
        return {};
    }

    /// The script of a heterogeneous job is told of its first group as if that were all; a step has
    /// the nodes of all its groups.
    void take_groups(Place& place) {
        constexpr std::size_t kMost = 128;  // of Slurm
        const Result<int> groups = variables_.small({"SLURM_HET_SIZE"}, kMost, 1);
        if (place.is_on_every_node || is_mpirun_ || !groups || *groups < 2) {
            return;
        }
        groups_ = *groups;
        for (int i = 1; i < groups_; ++i) {
            const Result<std::vector<std::string>> hosts = expand_host_list(
                variables_.text(fmt::format("SLURM_JOB_NODELIST_HET_GROUP_{}", i).c_str()));
            place.nodes += hosts ? static_cast<int>(hosts->size()) : 0;
        }
    }

    /// Tasks are processes that srun starts: several on a node are as many ddprun.
    [[nodiscard]] Result<void> take_tasks(Place& place) {
        if (!place.is_on_every_node) {
            return {};
        }
        const std::optional<Variable> layout =
            variables_.first_of({"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
        if (!layout) {
            return {};
        }
        const Result<std::vector<int>> counts = expand_counts(layout->value);
        if (!counts) {
            return layout->wrong(counts.error().what);
        }
        if (counts->size() != static_cast<std::size_t>(place.nodes)) {
            return layout->wrong(fmt::format("is for {} nodes, but {} has {}", counts->size(),
                                             place.job, place.nodes));
        }
        place.tasks = 0;
        for (const int count : *counts) {
            if (count < 1 || count > Limits{}.slots_max) {
                return layout->wrong(
                    fmt::format("must be from 1 to {} on each node", Limits{}.slots_max));
            }
            place.tasks += count;
        }
        place.tasks_here = counts->at(static_cast<std::size_t>(place.node_rank));
        const Result<int> here =
            variables_.small({"SLURM_LOCALID"}, static_cast<std::size_t>(place.tasks_here) - 1, 0);
        if (!here) {
            return here.error();
        }
        place.task_here = *here;
        return {};
    }

    /// Reads facts that help to say what is wrong. A fact that cannot be read is left out.
    void take_devices(Place& place) const {
        const Result<int> gpus = variables_.small({"SLURM_GPUS_ON_NODE"},
                                                  static_cast<std::size_t>(Limits{}.slots_max), 0);
        if (gpus && *gpus > 0) {
            place.gpus = *gpus;
        }
        // They are counted as the job's nodes are, of which a step may have a part.
        const std::optional<Variable> list =
            variables_.first_of({"SLURM_JOB_NODELIST", "SLURM_NODELIST"});
        const std::vector<int> cpus = cpus_of_nodes();
        const Result<std::vector<std::string>> hosts = expand_host_list(list ? list->value : "");
        if (!hosts || hosts->size() != cpus.size()) {
            return;
        }
        const auto found = std::find(hosts->begin(), hosts->end(), place.node);
        if (found != hosts->end()) {
            place.cpus = cpus[static_cast<std::size_t>(found - hosts->begin())];
        }
    }

    /// `switch1.switch2.node` beside its pattern `switch.switch.node`: all but the node, whose name
    /// may have dots.
    void take_topology(Place& place) const {
        const std::optional<Variable> address = variables_.first_of({"SLURM_TOPOLOGY_ADDR"});
        const std::optional<Variable> pattern =
            variables_.first_of({"SLURM_TOPOLOGY_ADDR_PATTERN"});
        if (!address || !pattern || !pattern->value.ends_with(".node")) {
            return;
        }
        const auto switches = std::count(pattern->value.begin(), pattern->value.end(), '.');
        std::size_t end = 0;
        for (std::ptrdiff_t i = 0; i < switches; ++i) {
            end = address->value.find('.', i == 0 ? 0 : end + 1);
            if (end == std::string::npos) {
                return;
            }
        }
        place.topology_key = address->value.substr(0, std::min(end, Limits{}.name_bytes_max));
    }

    /// Names the number of tasks too: a batch script hands its own, one for each GPU, on to srun.
    /// And the CPUs, which srun does not take over from the job since Slurm 22.05.
    void take_start_line(Place& place) const {
        place.start_line =
            fmt::format("srun -N{} -n{} --ntasks-per-node=1", place.nodes, place.nodes);
        place.cpus_flag = "--cpus-per-task=";
        if (groups_ > 1) {
            place.start_line =
                fmt::format("srun --het-group=0-{} --ntasks-per-node=1", groups_ - 1);
            return;
        }
        const std::vector<int> cpus = cpus_of_nodes();
        const auto least = std::min_element(cpus.begin(), cpus.end());
        if (least != cpus.end() && *least > 1) {
            place.start_line += fmt::format(" --cpus-per-task={}", *least);
        }
    }

    [[nodiscard]] std::vector<int> cpus_of_nodes() const {
        const std::optional<Variable> cpus = variables_.first_of({"SLURM_JOB_CPUS_PER_NODE"});
        Result<std::vector<int>> counts = expand_counts(cpus ? cpus->value : "");
        return counts ? *std::move(counts) : std::vector<int>{};
    }

    const Variables variables_;
    std::uint64_t job_ = 0;
    /// It starts its own on the job's nodes, on some of them by srun: that step is not ours.
    bool is_mpirun_ = false;
    int groups_ = 1;  ///< of a heterogeneous job
};

}  // namespace

Result<std::optional<Place>> place_in_slurm(const Surroundings& surroundings) {
    return Slurm(surroundings).find();
}

}  // namespace ddprun::launcher
