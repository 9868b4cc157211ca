#include "tests/unit/place_fixture.hpp"

using namespace ddprun;
using namespace ddprun::launcher;
using namespace ddprun::launcher::test;

namespace {

const std::string kWayOut = "; --place none starts without the scheduler";

// PBS. Variables of a task are those that OpenPBS sets (github.com/openpbs/openpbs,
// src/resmom/mom_main.c and start_exec.c), its list of nodes is that of generate_pbs_nodefile()
// there, which writes it on every node of the job. Values are invented.
const std::string kNodeFile = "/var/spool/pbs/aux/1399.login01";
const Variables kPbs = {{"PBS_ENVIRONMENT", "PBS_BATCH"}, {"PBS_JOBID", "1399.login01"},
                        {"PBS_JOBNAME", "aaa"},           {"PBS_MOMPORT", "15003"},
                        {"PBS_NODEFILE", kNodeFile},      {"PBS_NODENUM", "0"},
                        {"PBS_QUEUE", "normal"},          {"PBS_TASKNUM", "1"}};
// Torque 6.0.2, as recorded at HPC of SJTU (`env | grep PBS` in a public guide to it), its one node
// made two.
const Variables kTorque = with(kPbs, {{"PBS_VERSION", "TORQUE-6.0.2"},
                                      {"PBS_VNODENUM", "0"},
                                      {"PBS_NUM_NODES", "2"},
                                      {"PBS_NUM_PPN", "1"},
                                      {"PBS_NP", "2"}});

/// A task that pbsdsh has started on one of two nodes.
Node pbs_task(int node, const std::string& nodes = "gpu01\ngpu02\n") {
    const Variables task = {{"PBS_NODENUM", std::to_string(node)},
                            {"PBS_TASKNUM", std::to_string(node + 2)}};
    return {
        node == 0 ? "gpu01.site.org" : "gpu02.site.org", with(kPbs, task), {{kNodeFile, nodes}}};
}

// Grid Engine, recorded: https://wynton.ucsf.edu/hpc/scheduler/sge-envvars.html, its one host made
// two. The file's form is that of sge_pe(5).
const std::string kHostFile = "/var/spool/sge/wynton/qb3-id14/active_jobs/453717.1/pe_hostfile";
const Variables kSge = {{"JOB_ID", "453717"},
                        {"NHOSTS", "2"},
                        {"NSLOTS", "16"},
                        {"PE_HOSTFILE", kHostFile},
                        {"RESTARTED", "0"},
                        {"SGE_ROOT", "/opt/sge"},
                        {"SGE_TASK_FIRST", "undefined"},
                        {"SGE_TASK_ID", "undefined"}};
const std::string kHosts =
    "qb3-id14 8 member.q@qb3-id14 UNDEFINED\nqb3-id15 8 member.q@qb3-id15 UNDEFINED\n";

// LSF 7, recorded: https://www.open-mpi.org/community/lists/users/2009/04/8842.php. LSF_PM_TASKID
// is set for what blaunch starts (`ess` of Open MPI reads it there); that record has none.
const Variables kLsf = {
    {"LSB_DJOB_HOSTFILE", "/home/lsfadmin/.lsbatch/1239206877.748.hostfile"},
    {"LSB_HOSTS", "grid01 grid01 grid05 grid03"},
    {"LSB_JOBID", "748"},
    {"LSB_JOBINDEX", "0"},
    {"LSB_MCPU_HOSTS", "grid03 1 grid05 1 grid01 2"},
    {"LSB_SUB_HOST", "grid03"},
};

}  // namespace

TEST_CASE("pbsdsh needs no flags: nodes, rank, endpoint and name are the job's") {
    const LaunchPlan first = pbs_task(0).plan();
    CHECK(first.takes_place);
    CHECK(first.identity().settings.max_nodes == 2);
    CHECK(first.endpoint_host == "gpu01");
    CHECK(first.endpoint_port == 23000 + 1399);
    CHECK(first.identity().node_rank == 0);
    CHECK(first.identity().job == JobId{"1399"});
    REQUIRE_FALSE(first.notes.empty());
    CHECK(first.notes[0] == "pbs job 1399: 2 nodes, endpoint gpu01:24399");
    const LaunchPlan second = pbs_task(1).plan();
    CHECK(second.identity().node_rank == 1);
    CHECK(second.endpoint_host == "gpu01");
    CHECK(second.notes.empty());
    // Flags first.
    CHECK(pbs_task(1).plan("--standalone").is_single_node);
    CHECK(pbs_task(1).plan("--nnodes 2 --rdzv-id j --rdzv-endpoint h:1").endpoint_host == "h");
}

TEST_CASE("PBS's job script is told the line that starts all nodes") {
    const std::map<std::string, std::string> files = {{kNodeFile, "gpu01\ngpu02\n"}};
    CHECK(Node{"gpu01", kPbs, files}.refusal() ==
          "pbs job 1399 has 2 nodes, and this is started on one of them only; start ddprun on "
          "each: pbsdsh -- ddprun ... (--standalone for this node alone)");
    CHECK(Node{"gpu01", kTorque, files}.refusal() ==
          "pbs job 1399 has 2 nodes, and this is started on one of them only; start ddprun on "
          "each: pbsdsh -u ddprun --nnodes 2 --rdzv-id 1399 --rdzv-endpoint gpu01:24399 ... "
          "(--standalone for this node alone)");
    const Node one = {"gpu01", kPbs, {{kNodeFile, "gpu01\ngpu01\n"}}};
    CHECK(one.plan().is_single_node);
    CHECK(one.plan().identity().job == JobId{"1399"});
    CHECK(one.plan().identity().slots == 1);
}

TEST_CASE("a pbsdsh that starts several on a node is refused") {
    const std::string nodes = "gpu01\ngpu01\ngpu02\ngpu02\n";
    CHECK(pbs_task(1, nodes).refusal() ==
          "pbs job 1399 has 2 tasks on this node, and each does not know which one it is; one "
          "ddprun starts all workers of a node: mpirun -np 2 --map-by ppr:1:node --bind-to none "
          "ddprun ...");
}

TEST_CASE("mpirun in a job of PBS: nodes and endpoint are the job's, processes mpirun's") {
    const Variables mpi = {{"OMPI_COMM_WORLD_SIZE", "4"},       {"OMPI_COMM_WORLD_RANK", "3"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                           {"OMPI_MCA_orte_num_nodes", "2"},    {"PMIX_NAMESPACE", "77"}};
    Node node = pbs_task(1, "gpu01\ngpu01\ngpu02\ngpu02\n");
    node.variables = with(node.variables, mpi);
    const LaunchPlan plan = node.plan();
    CHECK(plan.endpoint_host == "gpu01");
    CHECK(plan.identity().node_rank == 1);
    CHECK(plan.identity().job == JobId{"1399"});
    CHECK(plan.place->tasks_here == 2);
    CHECK(plan.place->task_here == 1);
    CHECK(plan.identity().slots == 2);
    // Cray's, which has no variable for its own name.
    node.variables = with(
        pbs_task(0).variables,
        {{"PMI_SIZE", "2"}, {"PMI_RANK", "0"}, {"PMI_LOCAL_SIZE", "1"}, {"PMI_LOCAL_RANK", "0"}});
    CHECK(node.plan().place->tasks_here == 1);
    // A part of the job's nodes: the first need not be one of them.
    node = pbs_task(1, "gpu01\ngpu02\ngpu03\n");
    node.variables = with(node.variables, mpi);
    CHECK_THAT(node.refusal(),
               Catch::Contains("pbs job 1399 has 2 nodes, and does not tell where"));
}

TEST_CASE("a node that PBS does not tell the others of asks for them") {
    Node node = {"gpu02", with(kTorque, {{"PBS_NODENUM", "1"}, {"PBS_TASKNUM", "2"}})};
    CHECK(node.refusal() ==
          "pbs job 1399 has 2 nodes, and does not tell where they can meet; add --nnodes 2 "
          "--rdzv-endpoint HOST:29400, the same on every node, where HOST is one of them "
          "(--standalone for this node alone)");
    node.variables["PBS_NUM_NODES"] = "";
    CHECK_THAT(node.refusal(), Catch::Contains("pbs job 1399 does not tell how many nodes it has"));
    node.files = {{kNodeFile, "../etc/passwd\n"}};
    CHECK(node.refusal() == "PBS_NODEFILE=" + kNodeFile + ": '../etc/passwd' is no host" + kWayOut);
    node.files = {{kNodeFile, "gpu07\n"}};
    CHECK(node.refusal() ==
          "PBS_NODEFILE=" + kNodeFile + ": gpu02 is none of its 1 nodes" + kWayOut);
}

TEST_CASE("each job of an array of PBS has its own name and port") {
    Node node = pbs_task(0);
    node.variables["PBS_JOBID"] = "1399[7].login01";
    CHECK(node.plan().identity().job == JobId{"1399.7"});
    CHECK(node.plan().endpoint_port == 23000 + 1406);
}

TEST_CASE("Grid Engine's job script is told a line with all that other nodes do not know") {
    CHECK(Node{"qb3-id14.wynton.ucsf.edu", kSge, {{kHostFile, kHosts}}}.refusal() ==
          "sge job 453717 has 2 nodes, and this is started on one of them only; start ddprun on "
          "each: mpirun -np 2 --map-by ppr:1:node --bind-to none ddprun --nnodes 2 --rdzv-id "
          "453717 --rdzv-endpoint qb3-id14:27389 ... (--standalone for this node alone)");
    const Node one = {"qb3-id14",
                      with(kSge, {{"NHOSTS", "1"}}),
                      {{kHostFile, "qb3-id14 4 member.q@qb3-id14 UNDEFINED\n"}}};
    CHECK(one.plan().is_single_node);
    CHECK(one.plan().notes[0] == "sge job 453717: 1 node");
    Node array = {"qb3-id14", with(kSge, {{"PE_HOSTFILE", ""}, {"SGE_TASK_ID", "3"}})};
    CHECK(array.plan().identity().job == JobId{"453717.3"});
    array.variables["RESTARTED"] = "1";
    CHECK(array.plan().notes[0] == "sge job 453717.3: 1 node, started again 1 time");
}

TEST_CASE("other nodes of Grid Engine are not told the first") {
    const Node other = {"qb3-id15", kSge};
    CHECK_THAT(other.refusal(), Catch::Contains("sge job 453717 has 2 nodes, and does not tell"));
    CHECK(other.plan("--nnodes 2 --rdzv-id 453717 --rdzv-endpoint qb3-id14:27389").endpoint_host ==
          "qb3-id14");
    CHECK(Node{"qb3-id14", kSge, {{kHostFile, "qb3-id14 many\n"}}}.refusal() ==
          "PE_HOSTFILE=" + kHostFile + ": 'many' behind qb3-id14 is no number of slots" + kWayOut);
}

TEST_CASE("blaunch needs no flags where LSF gives each host one slot") {
    const Variables task = {{"LSB_MCPU_HOSTS", "grid03 1 grid05 1"}, {"LSF_PM_TASKID", "2"}};
    const LaunchPlan plan = Node{"grid05", with(kLsf, task)}.plan();
    CHECK(plan.identity().settings.max_nodes == 2);
    CHECK(plan.identity().node_rank == 1);
    CHECK(plan.endpoint_host == "grid03");
    CHECK(plan.endpoint_port == 23748);
    CHECK(plan.identity().job == JobId{"748"});
    CHECK(Node{"grid03", with(kLsf, {{"LSB_MCPU_HOSTS", "grid03 1 grid05 1"}})}.refusal() ==
          "lsf job 748 has 2 nodes, and this is started on one of them only; start ddprun on each: "
          "blaunch ddprun ... (--standalone for this node alone)");
}

TEST_CASE("LSF's slots are no nodes") {
    const std::string line = "blaunch -z \"$(uniq $LSB_DJOB_HOSTFILE)\" ddprun ...";
    CHECK_THAT(Node({"grid01", kLsf}).refusal(), Catch::Contains(line));
    // By that line the third task is on the third host.
    const LaunchPlan third = Node{"grid01", with(kLsf, {{"LSF_PM_TASKID", "3"}})}.plan();
    CHECK(third.identity().settings.max_nodes == 3);
    CHECK(third.identity().node_rank == 2);
    CHECK(Node{"grid01", with(kLsf, {{"LSF_PM_TASKID", "4"}})}.refusal() ==
          "lsf job 748 has 2 tasks on this node, and each does not know which one it is; one "
          "ddprun starts all workers of a node: " +
              line);
    // Long lists are in the file alone.
    const Variables unset = {{"LSB_MCPU_HOSTS", ""}, {"LSF_PM_TASKID", "2"}};
    const std::map<std::string, std::string> file = {
        {kLsf.at("LSB_DJOB_HOSTFILE"), "grid03\ngrid05\n"}};
    CHECK(Node{"grid05", with(kLsf, unset), file}.plan().identity().settings.max_nodes == 2);
}

TEST_CASE("variables of LSF that cannot be read are refused") {
    CHECK(Node{"grid03", with(kLsf, {{"LSB_MCPU_HOSTS", "grid03"}})}.refusal() ==
          "LSB_MCPU_HOSTS=grid03: '' behind grid03 is no number of slots" + kWayOut);
    CHECK(Node{"grid09", kLsf}.refusal() ==
          "grid09 is none of the 3 nodes of lsf job 748" + kWayOut);
    CHECK(Node{"grid03", with(kLsf, {{"LSB_MCPU_HOSTS", ""}})}.refusal() ==
          "lsf job 748: LSB_MCPU_HOSTS is not set, so that nobody knows its nodes" + kWayOut);
    CHECK(Node{"grid03", with(kLsf, {{"LSB_JOBINDEX", "2"}, {"LSB_MCPU_HOSTS", "grid03 8"}})}
              .plan()
              .identity()
              .job == JobId{"748.2"});
}
