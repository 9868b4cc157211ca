#include "tests/unit/place_fixture.hpp"

using namespace ddprun;
using namespace ddprun::launcher;
using namespace ddprun::launcher::test;

namespace {

// Recorded with each program's env under it, two processes on each of the two hosts nodea and
// nodeb, process 2: Open MPI 4.1.4 (Debian 12), Open MPI 5.0.11, MPICH 5.0.2 and Intel MPI 2021
// (all of PyPI). Variables that ddprun does not read are left out.
const Variables kOpenMpi4 = {
    {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
    {"OMPI_COMM_WORLD_NODE_RANK", "0"},
    {"OMPI_COMM_WORLD_RANK", "2"},
    {"OMPI_COMM_WORLD_SIZE", "4"},
    {"OMPI_MCA_ess_base_jobid", "1947205633"},
    {"OMPI_MCA_orte_num_nodes", "2"},
    {"OMPI_UNIVERSE_SIZE", "6"},
    {"PMIX_HOSTNAME", "nodeb"},
    {"PMIX_NAMESPACE", "1947205633"},
    {"PMIX_RANK", "2"},
};
const Variables kOpenMpi5 = {
    {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
    {"OMPI_COMM_WORLD_NODE_RANK", "0"},
    {"OMPI_COMM_WORLD_RANK", "2"},
    {"OMPI_COMM_WORLD_SIZE", "4"},
    {"OMPI_VERSION", "5.0.11"},
    {"PMIX_HOSTNAME", "nodeb"},
    {"PMIX_NAMESPACE", "prterun-vm-7649@1"},
    {"PMIX_RANK", "2"},
    {"PRTE_LAUNCHED", "1"},
};
const Variables kMpich = {{"MPI_LOCALNRANKS", "2"},  {"MPI_LOCALRANKID", "0"}, {"PMI_FD", "12"},
                          {"PMI_HOSTNAME", "nodeb"}, {"PMI_RANK", "2"},        {"PMI_SIZE", "4"}};
const Variables kIntel = with(
    kMpich, {{"PMI_HOSTNAME", ""}, {"I_MPI_HYDRA_UUID", "e5210000-1f10-635d-ea60-0600eef1ad25"}});
// `srun --mpi=pmi2` sets these beside its own (Slurm's source, src/plugins/mpi/pmi2/mpi_pmi2.c).
const Variables kSrunPmi2 = {{"PMI_FD", "3"}, {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}};

/// All four on this machine.
Variables on_one_node(const Variables& base, const std::string& local_rank) {
    return with(base, {{"OMPI_COMM_WORLD_LOCAL_SIZE", base.contains("PMIX_RANK") ? "4" : ""},
                       {"OMPI_COMM_WORLD_LOCAL_RANK", local_rank},
                       {"OMPI_COMM_WORLD_RANK", local_rank},
                       {"OMPI_MCA_orte_num_nodes", base.contains("OMPI_VERSION") ? "" : "1"},
                       {"MPI_LOCALNRANKS", base.contains("PMI_FD") ? "4" : ""},
                       {"MPI_LOCALRANKID", local_rank},
                       {"PMI_RANK", local_rank}});
}

}  // namespace

TEST_CASE("mpirun on one machine: the first process starts the workers of all") {
    for (const Variables& variables : {kOpenMpi4, kOpenMpi5, kIntel}) {
        const LaunchPlan first = plan_of("", on_one_node(variables, "0"));
        CHECK(first.takes_place);
        CHECK(first.is_single_node);
        CHECK(first.identity().slots == 4);
        CHECK(first.place->tasks_here == 4);
        CHECK(first.place->task_here == 0);
        CHECK_FALSE(first.place->tasks_id.empty());
        REQUIRE_FALSE(first.notes.empty());
        CHECK(first.notes[0] == "mpirun: 1 node");
        const LaunchPlan last = plan_of("", on_one_node(variables, "3"));
        CHECK(last.place->task_here == 3);
        CHECK(last.place->tasks_id == first.place->tasks_id);
    }
    const LaunchPlan alone =
        plan_of("", with(on_one_node(kOpenMpi4, "0"),
                         {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}, {"OMPI_COMM_WORLD_SIZE", "1"}}));
    CHECK(alone.identity().slots == 1);
    CHECK(alone.place->tasks_here == 1);
}

TEST_CASE("where mpirun does not say what it has started together, one is enough") {
    CHECK(refusal_of("", on_one_node(kMpich, "0")) ==
          "mpirun has 4 tasks on this node, and each does not know which one it is; one ddprun "
          "starts all workers of a node: mpiexec -n 1 -ppn 1 ddprun ...");
    const Variables one = {{"MPI_LOCALNRANKS", "1"}, {"PMI_SIZE", "1"}};
    CHECK(plan_of("", with(on_one_node(kMpich, "0"), one)).is_single_node);
}

TEST_CASE("where nodes of mpirun can meet is asked for") {
    const std::string end =
        ", the same on every node, where HOST is one of them (--standalone for this node alone)";
    const Variables one_per_node = {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                                    {"OMPI_COMM_WORLD_SIZE", "2"},
                                    {"OMPI_COMM_WORLD_RANK", "1"}};
    CHECK(refusal_of("", with(kOpenMpi4, one_per_node)) ==
          "mpirun has 2 nodes, and does not tell where they can meet; add --nnodes 2 "
          "--rdzv-endpoint HOST:29400" +
              end);
    CHECK(refusal_of("", kOpenMpi4) ==
          "mpirun has 2 nodes, and does not tell where they can meet, 2 ddprun on this one; start "
          "one on each: mpirun -np 2 --map-by ppr:1:node --bind-to none ddprun --nnodes 2 "
          "--rdzv-endpoint HOST:29400 ..." +
              end);
    CHECK(refusal_of("", kMpich) ==
          "mpirun has 2 nodes, and does not tell where they can meet, 2 ddprun on this one; start "
          "one on each: mpiexec -n 2 -ppn 1 ddprun --nnodes 2 --rdzv-endpoint HOST:29400 ..." +
              end);
    // Seven processes, two of them here: the number of nodes cannot be known.
    CHECK_THAT(refusal_of("", with(kOpenMpi5, {{"OMPI_COMM_WORLD_SIZE", "7"}})),
               Catch::Contains("does not tell how many nodes it has, 2 ddprun on this one") &&
                   Catch::Contains("mpirun -np NODES ") && Catch::Contains("--nnodes N "));
}

TEST_CASE("flags for nodes under mpirun are taken as they are, one ddprun on each") {
    const std::string flags = "--nnodes 2 --rdzv-id j --rdzv-endpoint head:1";
    const Variables one_per_node = {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                                    {"OMPI_COMM_WORLD_SIZE", "2"},
                                    {"OMPI_COMM_WORLD_RANK", "1"}};
    const LaunchPlan plan = plan_of(flags, with(kOpenMpi4, one_per_node));
    CHECK_FALSE(plan.takes_place);
    CHECK(plan.endpoint_host == "head");
    CHECK(refusal_of(flags, kOpenMpi4) ==
          "--nnodes 2, but mpirun starts 4 ddprun, 2 on this node; start one on each node: mpirun "
          "-np 2 --map-by ppr:1:node --bind-to none ddprun ...");
    CHECK(refusal_of("--rdzv-id j --rdzv-endpoint head:1", with(kOpenMpi4, one_per_node)) ==
          "mpirun has 2 nodes, but with --rdzv-endpoint head:1 nothing is taken from it, and "
          "--nnodes is 1: each node would be a job of its own; add --nnodes 2 and "
          "--rdzv-endpoint, or --nnodes 1 if that is meant");
    CHECK(plan_of("--standalone", kOpenMpi4).is_single_node);
    CHECK(plan_of("--nnodes 1", kOpenMpi4).is_single_node);
    CHECK_FALSE(plan_of("--place none", kOpenMpi4).place);
}

TEST_CASE("mpirun's binding to a core is said") {
    FakeSurroundings machine;
    const Variables variables = on_one_node(kOpenMpi4, "0");
    machine.variables.insert(variables.begin(), variables.end());
    machine.cpus = {5};
    machine.texts["/sys/devices/system/cpu/online"] = "0-63\n";
    CHECK(as_plan(make_plan(words("train.py"), machine)).warnings ==
          std::vector<std::string>{"1 of 64 CPUs allowed: add --bind-to none to mpirun"});
}

TEST_CASE("srun's own variables of MPI change nothing") {
    const Variables step = {{"SLURM_JOB_ID", "42"},        {"SLURM_STEP_ID", "0"},
                            {"SLURM_NODEID", "1"},         {"SLURM_STEP_NODELIST", "gpu-[01-02]"},
                            {"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                            {"SLURMD_NODENAME", "gpu-02"}};
    const LaunchPlan plan = plan_of("", with(step, kSrunPmi2));
    CHECK(plan.endpoint_host == "gpu-01");
    CHECK(plan.identity().node_rank == 1);
}

TEST_CASE("mpirun in a job of Slurm: nodes and endpoint are the job's") {
    // On all nodes but the first mpirun's own daemons are a step of srun. Invented from kOpenMpi4
    // and tests/cluster/slurm.py, which runs it.
    const Variables job = {{"SLURM_JOB_ID", "42"},
                           {"SLURM_JOB_NODELIST", "gpu-[01-02]"},
                           {"SLURM_JOB_NUM_NODES", "2"},
                           {"SLURM_NODEID", "0"}};
    const Variables mpi = {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                           {"OMPI_COMM_WORLD_SIZE", "2"},
                           {"OMPI_COMM_WORLD_RANK", "0"}};
    const LaunchPlan first =
        plan_of("", with(with(kOpenMpi4, with(job, mpi)), {{"SLURMD_NODENAME", "gpu-01"}}));
    CHECK(first.identity().node_rank == 0);
    CHECK(first.identity().job == JobId{"42"});
    CHECK(first.notes[0] == "slurm job 42: 2 nodes, endpoint gpu-01:23042");
    const Variables step = {{"SLURM_STEP_ID", "0"},        {"SLURM_STEP_NODELIST", "gpu-02"},
                            {"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_STEP_TASKS_PER_NODE", "1"},
                            {"SLURMD_NODENAME", "gpu-02"}, {"OMPI_COMM_WORLD_RANK", "1"}};
    const LaunchPlan second = plan_of("", with(with(kOpenMpi4, with(job, mpi)), step));
    CHECK(second.identity().node_rank == 1);
    CHECK(second.identity().job == first.identity().job);
    CHECK(second.endpoint_host == "gpu-01");
    CHECK(second.endpoint_port == first.endpoint_port);
}

TEST_CASE("variables of mpirun that contradict each other are refused") {
    const std::string way_out = "; --place none starts without the scheduler";
    CHECK(refusal_of("", with(kOpenMpi4, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "5"}})) ==
          "OMPI_COMM_WORLD_SIZE=4 and OMPI_COMM_WORLD_LOCAL_SIZE=5: of all processes some are "
          "here" +
              way_out);
    CHECK(refusal_of("", with(kOpenMpi4, {{"OMPI_COMM_WORLD_RANK", "4"}})) ==
          "OMPI_COMM_WORLD_RANK=4: must be a whole number up to 3" + way_out);
    CHECK(plan_of("--standalone", with(kOpenMpi4, {{"OMPI_COMM_WORLD_RANK", "4"}})).is_single_node);
}
