#include "tests/unit/place_fixture.hpp"

using namespace ddprun;
using namespace ddprun::launcher;
using namespace ddprun::launcher::test;

namespace {

// Slurm 22.05.8 (Debian 12) has set these for the tasks of `srun -N2`, of `sbatch -N2
// --ntasks-per-node=4 --cpus-per-task=2`, and for a command of `salloc -N2`; the names of nodes
// are changed.
const Variables kStep = {
    {"SLURMD_NODENAME", "gpu-01"},
    {"SLURM_CLUSTER_NAME", "loop"},
    {"SLURM_CPUS_ON_NODE", "1"},
    {"SLURM_JOBID", "42"},
    {"SLURM_JOB_CPUS_PER_NODE", "1(x2)"},
    {"SLURM_JOB_ID", "42"},
    {"SLURM_JOB_NODELIST", "gpu-[01-02]"},
    {"SLURM_JOB_NUM_NODES", "2"},
    {"SLURM_LOCALID", "0"},
    {"SLURM_NNODES", "2"},
    {"SLURM_NODEID", "0"},
    {"SLURM_NODELIST", "gpu-[01-02]"},
    {"SLURM_NTASKS", "2"},
    {"SLURM_PROCID", "0"},
    {"SLURM_STEPID", "0"},
    {"SLURM_STEP_ID", "0"},
    {"SLURM_STEP_NODELIST", "gpu-[01-02]"},
    {"SLURM_STEP_NUM_NODES", "2"},
    {"SLURM_STEP_NUM_TASKS", "2"},
    {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
    {"SLURM_TASKS_PER_NODE", "1(x2)"},
    {"SLURM_TOPOLOGY_ADDR", "gpu-01"},
    {"SLURM_TOPOLOGY_ADDR_PATTERN", "node"},
};
const Variables kBatch = {
    {"SLURMD_NODENAME", "gpu-01"}, {"SLURM_CPUS_ON_NODE", "8"},
    {"SLURM_CPUS_PER_TASK", "2"},  {"SLURM_JOB_CPUS_PER_NODE", "8(x2)"},
    {"SLURM_JOB_ID", "42"},        {"SLURM_JOB_NODELIST", "gpu-[01-02]"},
    {"SLURM_JOB_NUM_NODES", "2"},  {"SLURM_LOCALID", "0"},
    {"SLURM_NNODES", "2"},         {"SLURM_NODEID", "0"},
    {"SLURM_NTASKS", "8"},         {"SLURM_NTASKS_PER_NODE", "4"},
    {"SLURM_PROCID", "0"},         {"SLURM_TASKS_PER_NODE", "4(x2)"},
};
const Variables kShell = {
    {"SLURM_JOB_ID", "42"},
    {"SLURM_JOB_CPUS_PER_NODE", "1(x2)"},
    {"SLURM_JOB_NODELIST", "gpu-[01-02]"},
    {"SLURM_JOB_NUM_NODES", "2"},
    {"SLURM_NNODES", "2"},
    {"SLURM_TASKS_PER_NODE", "1(x2)"},
};

/// A step of eight tasks on each of two nodes, which all see eight GPUs.
Variables task_per_gpu(const std::string& local_id, const Variables& changes = {}) {
    return with(with(kStep, {{"SLURM_STEP_TASKS_PER_NODE", "8(x2)"},
                             {"SLURM_STEP_NUM_TASKS", "16"},
                             {"SLURM_JOB_CPUS_PER_NODE", "6(x2)"},
                             {"SLURM_LOCALID", local_id},
                             {"SLURM_GPUS_ON_NODE", "8"},
                             {"CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7"}}),
                changes);
}

}  // namespace

TEST_CASE("srun needs no flags: nodes, rank, endpoint, GPUs and name are the step's") {
    const LaunchPlan plan = plan_of("", with(kStep, {{"SLURM_GPUS_ON_NODE", "8"},
                                                     {"CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7"},
                                                     {"SLURM_NODEID", "0"}}));
    CHECK(plan.takes_place);
    CHECK(plan.identity().settings.min_nodes == 2);
    CHECK(plan.identity().settings.max_nodes == 2);
    CHECK_FALSE(plan.is_single_node);
    CHECK(plan.endpoint_host == "gpu-01");
    CHECK(plan.endpoint_port == 23042);
    CHECK(plan.identity().node_rank == 0);
    CHECK(plan.identity().job == JobId{"42.0"});
    CHECK(plan.identity().slots == 8);
    REQUIRE(!plan.notes.empty());
    CHECK(plan.notes[0] == "slurm job 42.0: 2 nodes, endpoint gpu-01:23042, 8 GPUs here");

    const LaunchPlan second =
        plan_of("", with(kStep, {{"SLURM_NODEID", "1"}, {"SLURMD_NODENAME", "gpu-02"}}));
    CHECK(second.identity().node_rank == 1);
    CHECK(second.endpoint_host == "gpu-01");
    CHECK(second.identity().slots == 1);
    CHECK(second.notes.empty());  // The first node speaks for all.
}

TEST_CASE("of an allocation of N+K nodes K are spares") {
    const Variables three = with(kStep, {{"SLURM_STEP_NODELIST", "gpu-[01-03]"},
                                         {"SLURM_STEP_NUM_NODES", "3"},
                                         {"SLURM_STEP_TASKS_PER_NODE", "1(x3)"}});
    const LaunchPlan plan = plan_of("--spare-nodes 1", three);
    CHECK(plan.takes_place);
    CHECK(plan.identity().settings.min_nodes == 2);
    CHECK(plan.identity().settings.max_nodes == 2);
    REQUIRE(!plan.notes.empty());
    CHECK(plan.notes[0] == "slurm job 42.0: 2 nodes and 1 spare, endpoint gpu-01:23042");
    // The last is none before a node is lost, and knows where they meet.
    const LaunchPlan last = plan_of(
        "", with(three,
                 {{"SLURM_NODEID", "2"}, {"SLURMD_NODENAME", "gpu-03"}, {"PET_SPARE_NODES", "1"}}));
    CHECK(last.identity().settings.max_nodes == 2);
    CHECK(last.identity().node_rank == 2);
    CHECK(last.endpoint_host == "gpu-01");
    // One that trains is several still: it needs the endpoint.
    const LaunchPlan one = plan_of("--spare-nodes 2", three);
    CHECK(one.identity().settings.max_nodes == 1);
    CHECK_FALSE(one.is_single_node);
    CHECK(one.notes[0] == "slurm job 42.0: 1 node and 2 spares, endpoint gpu-01:23042");
    CHECK(plan_of("--spare-nodes 0", three).identity().settings.max_nodes == 3);
    CHECK(plan_of("--spare-nodes=", three).identity().settings.max_nodes == 3);
}

TEST_CASE("more spares than nodes are refused, and without a place they are none") {
    CHECK(refusal_of("--spare-nodes 2", kStep) ==
          "--spare-nodes 2: slurm job 42.0 has 2 nodes, and none would be left to train; ask the "
          "scheduler for more than 2, or for fewer spares");
    CHECK(refusal_of("--spare-nodes -1", kStep) ==
          "--spare-nodes -1: must be a whole number from 0 to 16383");
    const std::string at_head = " --rdzv-endpoint head --rdzv-id j --spare-nodes 1";
    for (const LaunchPlan& plan : {plan_of("--nnodes 2" + at_head, kStep),
                                   plan_of("--nnodes 2 --place none" + at_head, kStep)}) {
        CHECK(plan.identity().settings.max_nodes == 2);
        REQUIRE(!plan.warnings.empty());
        CHECK(plan.warnings[0] ==
              "--spare-nodes 1 has no effect beside --nnodes 2: nodes beyond --nnodes are spares "
              "anyway");
    }
    const LaunchPlan alone = plan_of("--spare-nodes 1");
    REQUIRE(!alone.warnings.empty());
    CHECK(alone.warnings[0] ==
          "--spare-nodes 1 has no effect without a scheduler: nodes beyond --nnodes are spares "
          "anyway");
}

TEST_CASE("the port of a Slurm job is below the kernel's own") {
    for (const std::string job : {"0", "9767", "9768", "4294967295"}) {
        const LaunchPlan plan = plan_of("", with(kStep, {{"SLURM_JOB_ID", job}}));
        CHECK(plan.endpoint_port >= 23000);
        CHECK(plan.endpoint_port < 32768);
    }
    CHECK(plan_of("", with(kStep, {{"SLURM_JOB_ID", "9767"}})).endpoint_port == 32767);
}

TEST_CASE("what the user says of workers and names goes with the step's nodes") {
    const LaunchPlan plan = plan_of("--nproc-per-node 3 --rdzv-id mine --max-restarts 2", kStep);
    CHECK(plan.takes_place);
    CHECK(plan.identity().slots == 3);
    CHECK(plan.identity().job == JobId{"mine"});
    CHECK(plan.notes[0] == "slurm job 42.0: 2 nodes, endpoint gpu-01:23042");
    CHECK(plan_of("", with(kStep, {{"PET_NPROC_PER_NODE", "2"}})).identity().slots == 2);
}

TEST_CASE("any size, endpoint, master or rank takes all of them from the user") {
    const std::string endpoint = "--rdzv-id j --rdzv-endpoint head:1";
    const LaunchPlan given = plan_of("--nnodes 2 " + endpoint, kStep);
    CHECK_FALSE(given.takes_place);
    CHECK(given.endpoint_host == "head");
    CHECK(given.endpoint_port == 1);
    CHECK_FALSE(given.identity().node_rank);
    CHECK(given.identity().job == JobId{"j"});
    CHECK(plan_of("--nnodes 1", kStep).is_single_node);
    CHECK(plan_of("--standalone", kStep).is_single_node);
    CHECK(plan_of("--standalone", kBatch).is_single_node);
    CHECK(plan_of("", with(kStep, {{"PET_NNODES", "1"}})).is_single_node);
    CHECK(plan_of("--nnodes 2 --master-addr h", kStep).endpoint_host == "h");
    CHECK(plan_of("--place none", kStep).is_single_node);
    CHECK(plan_of("--place none", kStep).identity().slots == 1);
    CHECK_FALSE(plan_of("--place none", kStep).place);
    CHECK(plan_of("", with(kStep, {{"PET_PLACE", "none"}})).is_single_node);
    // An empty variable of a shell script says nothing.
    CHECK(plan_of("--rdzv-endpoint=", kStep).takes_place);
}

TEST_CASE("GPUs are the default of workers where one ddprun runs on a node") {
    const Variables gpus = {{"SLURM_GPUS_ON_NODE", "4"}, {"CUDA_VISIBLE_DEVICES", "0,1,2,3"}};
    CHECK(plan_of("--standalone", with(kStep, gpus)).identity().slots == 4);
    CHECK(plan_of("--standalone", with(kStep, gpus)).notes[0] == "slurm job 42.0: 4 GPUs here");
    CHECK(plan_of("--standalone", gpus).identity().slots == 1);
    CHECK(plan_of("--standalone", task_per_gpu("0")).identity().slots == 1);
}

TEST_CASE("a world of one in a step of several nodes is refused") {
    CHECK(refusal_of("--rdzv-endpoint head:1", kStep) ==
          "slurm job 42.0 has 2 nodes, but with --rdzv-endpoint head:1 nothing is taken from it, "
          "and --nnodes is 1: each node would be a job of its own; leave --rdzv-endpoint head:1 "
          "out, or add --nnodes 2 and --rdzv-endpoint, or --nnodes 1 if that is meant");
    CHECK_THAT(refusal_of("--master-port 29500", kStep), Catch::Contains("--nnodes 2"));
    CHECK_THAT(refusal_of("", with(kStep, {{"PET_NODE_RANK", "0"}})),
               Catch::Contains("with PET_NODE_RANK=0 nothing"));
}

TEST_CASE("outside a step the line for srun is printed") {
    CHECK(refusal_of("", kBatch) ==
          "slurm job 42 has 2 nodes, and this is started on one of them only; start ddprun on "
          "each: srun -N2 -n2 --ntasks-per-node=1 --cpus-per-task=8 ddprun ... (--standalone for "
          "this node alone)");
    CHECK(refusal_of("", kShell) ==
          "slurm job 42 has 2 nodes, and this machine is none; start ddprun on each: srun -N2 -n2 "
          "--ntasks-per-node=1 ddprun ... (--standalone for this machine alone)");
    // A shell of salloc that is itself a step, and what Slurm sets for a batch script in a step.
    for (const std::string step : {"4294967290", "4294967291"}) {
        CHECK_THAT(refusal_of("", with(kBatch, {{"SLURM_STEP_ID", step}})),
                   Catch::Contains("srun -N2"));
    }
    const Variables one = {{"SLURM_JOB_NODELIST", "gpu-01"},
                           {"SLURM_JOB_NUM_NODES", "1"},
                           {"SLURM_JOB_CPUS_PER_NODE", "8"}};
    const LaunchPlan plan = plan_of("", with(kBatch, one));
    CHECK(plan.is_single_node);
    CHECK(plan.identity().job == JobId{"42"});
    CHECK(plan.notes[0] == "slurm job 42: 1 node");
    CHECK_THAT(refusal_of("", with(kShell, one)), Catch::Contains("this machine is none"));
}

TEST_CASE("the script of a heterogeneous job is told the line for all its groups") {
    // As Slurm 22.05.8 sets it where the groups have one and two nodes; names of nodes changed.
    const Variables script = with(kBatch, {{"SLURM_JOB_NODELIST", "gpu-01"},
                                           {"SLURM_JOB_NUM_NODES", "1"},
                                           {"SLURM_NNODES", "1"},
                                           {"SLURM_TASKS_PER_NODE", "1"},
                                           {"SLURM_JOB_CPUS_PER_NODE", "8"},
                                           {"SLURM_HET_SIZE", "2"},
                                           {"SLURM_JOB_NODELIST_HET_GROUP_0", "gpu-01"},
                                           {"SLURM_JOB_NODELIST_HET_GROUP_1", "cpu-[1-2]"}});
    CHECK(refusal_of("", script) ==
          "slurm job 42 has 3 nodes, and this is started on one of them only; start ddprun on "
          "each: srun --het-group=0-1 --ntasks-per-node=1 ddprun ... (--standalone for this node "
          "alone)");
    // A step has the nodes of all its groups in the usual variables.
    CHECK(plan_of("", with(kStep, {{"SLURM_HET_SIZE", "2"}})).identity().settings.max_nodes == 2);
}

TEST_CASE("of a task for each GPU one starts the workers of its node") {
    const LaunchPlan first = plan_of("", task_per_gpu("0"));
    CHECK(first.takes_place);
    CHECK(first.identity().slots == 8);
    CHECK(first.place->task_here == 0);
    CHECK(first.place->tasks_here == 8);
    CHECK(first.identity().settings.max_nodes == 2);
    const LaunchPlan other = plan_of("", task_per_gpu("7"));
    CHECK(other.place->task_here == 7);
    CHECK(other.notes.size() < first.notes.size());
    // Without GPUs, as many as there are tasks.
    CHECK(plan_of("", task_per_gpu("0", {{"SLURM_GPUS_ON_NODE", ""}})).identity().slots == 8);
}

TEST_CASE("a task that may not use all of its node is refused") {
    CHECK(refusal_of("", task_per_gpu("0", {{"CUDA_VISIBLE_DEVICES", "0"}})) ==
          "slurm job 42.0 has 8 tasks on this node, and each sees 1 of 8 GPUs; one ddprun starts "
          "all workers of a node: srun -N2 -n2 --ntasks-per-node=1 --cpus-per-task=6 ddprun ...");
    CHECK(refusal_of("", task_per_gpu("0", {{"SLURM_JOB_CPUS_PER_NODE", "64(x2)"}})) ==
          "slurm job 42.0 has 8 tasks on this node, and each may use 6 of 64 CPUs; one ddprun "
          "starts all workers of a node: srun -N2 -n2 --ntasks-per-node=1 --cpus-per-task=64 "
          "ddprun ...");
}

TEST_CASE("a torchrun line in a step with a task for each GPU is refused") {
    const std::string line = "--nnodes 2 --rdzv-id j --rdzv-endpoint head:1";
    CHECK(refusal_of(line, task_per_gpu("0", {{"CUDA_VISIBLE_DEVICES", "0"}})) ==
          "--nnodes 2, but slurm job 42.0 starts 16 ddprun, 8 on this node; start one on each "
          "node: srun -N2 -n2 --ntasks-per-node=1 --cpus-per-task=6 ddprun ..., which needs "
          "neither --nnodes nor an endpoint");
    // One for each task, or spares: both can be meant.
    CHECK(plan_of("--nnodes 16 --rdzv-id j --rdzv-endpoint h:1", task_per_gpu("0"))
              .identity()

              .slots == 1);
    CHECK(plan_of(line, with(kStep, {{"SLURM_STEP_NODELIST", "gpu-[01-03]"},
                                     {"SLURM_STEP_NUM_NODES", "3"},
                                     {"SLURM_STEP_TASKS_PER_NODE", "1(x3)"}}))
              .identity()
              .settings.max_nodes == 2);
}

TEST_CASE("few CPUs are said, with what gives more") {
    FakeSurroundings machine;
    machine.variables.insert(kStep.begin(), kStep.end());
    machine.cpus = {5};
    machine.texts["/sys/devices/system/cpu/online"] = "0-63\n";
    const auto warnings = [&machine] {
        return as_plan(make_plan(words("train.py"), machine)).warnings;
    };
    CHECK(warnings() ==
          std::vector<std::string>{"1 of 64 CPUs allowed: add --cpus-per-task=64 to srun"});
    machine.variables["SLURM_JOB_CPUS_PER_NODE"] = "32(x2)";
    CHECK(warnings() ==
          std::vector<std::string>{"1 of 32 CPUs allowed: add --cpus-per-task=32 to srun"});
    machine.cpus.resize(32);
    CHECK(warnings().empty());
    machine.cpus.resize(16);
    CHECK(warnings().size() == 1);
    machine.variables["SLURM_NODEID"] = "1";
    CHECK(warnings().empty());
}

TEST_CASE("Slurm's switches are the topology") {
    const auto key = [](const std::string& address, const std::string& pattern) {
        return plan_of("", with(kStep, {{"SLURM_TOPOLOGY_ADDR", address},
                                        {"SLURM_TOPOLOGY_ADDR_PATTERN", pattern}}))
            .identity()
            .topology_key;
    };
    CHECK(key("s0.s1.gpu-01", "switch.switch.node") == "s0.s1");
    CHECK(key("s0.127.0.0.1", "switch.node") == "s0");
    CHECK(key("gpu-01.site.org", "node").empty());
    CHECK(key("gpu-01", "switch.node").empty());
    CHECK(plan_of("--topology rack7", kStep).identity().topology_key == "rack7");
}

TEST_CASE("a job that was put back into the queue says how often") {
    CHECK(plan_of("", with(kStep, {{"SLURM_RESTART_COUNT", "2"}})).notes[0] ==
          "slurm job 42.0: 2 nodes, endpoint gpu-01:23042, started again 2 times");
}

TEST_CASE("variables of Slurm that contradict each other are refused") {
    const std::string way_out = "; --place none starts without the scheduler";
    CHECK(refusal_of("", with(kStep, {{"SLURM_STEP_NODELIST", "gpu-[01"}})) ==
          "SLURM_STEP_NODELIST=gpu-[01: a bracket is not closed" + way_out);
    CHECK(refusal_of("", with(kStep, {{"SLURM_STEP_NUM_NODES", "3"}})) ==
          "SLURM_STEP_NODELIST=gpu-[01-02]: names 2 nodes, but Slurm counts 3 in slurm job 42.0" +
              way_out);
    CHECK(refusal_of("", with(kStep, {{"SLURM_NODEID", "2"}})) ==
          "SLURM_NODEID=2: must be a whole number up to 1" + way_out);
    CHECK(refusal_of("", with(kStep, {{"SLURM_JOB_ID", "x"}})) ==
          "SLURM_JOB_ID=x: must be a whole number up to 4294967295" + way_out);
    CHECK(refusal_of("", with(kStep, {{"SLURM_STEP_TASKS_PER_NODE", "1"}})) ==
          "SLURM_STEP_TASKS_PER_NODE=1: is for 1 nodes, but slurm job 42.0 has 2" + way_out);
    CHECK(refusal_of("", {{"SLURM_JOB_ID", "42"}}) ==
          "slurm job 42: SLURM_JOB_NODELIST is not set, so that nobody knows its nodes" + way_out);
    // A wrong variable of Slurm does not stop a user who gives all by hand.
    CHECK(plan_of("--standalone", with(kStep, {{"SLURM_JOB_ID", "x"}})).is_single_node);
    CHECK(refusal_of("--place slurm", kStep) == "--place slurm: must be auto or none");
}
