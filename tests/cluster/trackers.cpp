// Under which number trackers know a run, across restarts, requeues and nodes.

#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/cluster/nodes.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun::test;

namespace {

using Variables = std::map<std::string, std::string>;

constexpr char kShow[] =
    "echo \"run=$DDPRUN_RUN_ID= wandb=$WANDB_RUN_ID= resume=$WANDB_RESUME= comet=$COMET_ID=\"; ";

/// Returns the texts between `name=` and the next '=' in all lines of `node`.
std::set<std::string> values(const Process& node, const std::string& name) {
    std::set<std::string> found;
    const std::string text = node.text();
    for (std::size_t at = 0; (at = text.find(name + "=", at)) != std::string::npos;) {
        at += name.size() + 1;
        found.insert(text.substr(at, text.find('=', at) - at));
    }
    return found;
}

std::string value(const Process& node, const std::string& name) {
    const std::set<std::string> found = values(node, name);
    REQUIRE(found.size() == 1);
    return *found.begin();
}

Variables slurm_step(const std::string& job, const std::string& restarts) {
    return {{"SLURM_JOB_ID", job},
            {"SLURM_STEP_ID", "0"},
            {"SLURM_NODEID", "0"},
            {"SLURM_JOB_NODELIST", "here"},
            {"SLURM_STEP_NODELIST", "here"},
            {"SLURM_STEP_NUM_NODES", "1"},
            {"SLURM_STEP_TASKS_PER_NODE", "1"},
            {"SLURMD_NODENAME", "here"},
            {"SLURM_CLUSTER_NAME", "alps"},
            {"SLURM_RESTART_COUNT", restarts}};
}

}  // namespace

TEST_CASE("a run has one number over restarts, which trackers find where they look") {
    Cluster cluster;
    Process& node = cluster.start_ddprun(
        {"--max-restarts", "1", "--env-per-run", "WANDB_RUN_ID,COMET_ID", "--no-python", "sh", "-c",
         std::string(kShow) + "[ $DDPRUN_GENERATION = 2 ] || exit 3"});
    CHECK(node.wait_exit() == 0);
    CHECK(node.count_lines("^run=[0-9a-f]{32}= ") == 2);
    const std::string number = value(node, "run");
    CHECK(value(node, "wandb") == number);
    CHECK(value(node, "comet") == number);
    CHECK(value(node, "resume") == "allow");
    cluster.wait_all_gone();
}

TEST_CASE("the nodes of a job know one number, and so does the job when it starts anew") {
    Cluster cluster;
    std::set<std::string> numbers;
    for (int start = 0; start < 2; ++start) {
        const FreePort port;
        std::vector<Process*> nodes;
        for (int i = 0; i < 2; ++i) {
            nodes.push_back(&cluster.start_ddprun({"--nnodes", "2", "--rdzv-id", "llama",
                                                   "--rdzv-endpoint", port.endpoint(), "--prepare",
                                                   "echo \"pre\"\"pared=$DDPRUN_RUN_ID=\"",
                                                   "--no-python", "sh", "-c", kShow}));
        }
        for (Process* node : nodes) {
            CHECK(node->wait_exit() == 0);
            numbers.insert(value(*node, "run"));
            numbers.insert(value(*node, "prepared"));
        }
    }
    CHECK(numbers.size() == 1);
    cluster.wait_all_gone();
}

TEST_CASE("a job that Slurm has put back into its queue keeps its number, others have others") {
    Cluster cluster;
    const auto number_in = [&cluster](const Variables& variables) {
        Process& node = cluster.start_ddprun({"--no-python", "sh", "-c", kShow}, variables);
        CHECK(node.wait_exit() == 0);
        return value(node, "run");
    };
    const std::string first = number_in(slurm_step("7", "0"));
    CHECK(number_in(slurm_step("7", "1")) == first);
    CHECK(number_in(slurm_step("8", "0")) != first);
    Variables elsewhere = slurm_step("7", "0");
    elsewhere["SLURM_CLUSTER_NAME"] = "daint";
    CHECK(number_in(elsewhere) != first);
    cluster.wait_all_gone();
}

TEST_CASE("what the user has set for a tracker stays") {
    Cluster cluster;
    Process& node = cluster.start_ddprun(
        {"--env-per-run", "WANDB_RUN_ID,COMET_ID", "--no-python", "sh", "-c", kShow},
        {{"WANDB_RUN_ID", "mine"}, {"COMET_ID", ""}});
    CHECK(node.wait_exit() == 0);
    CHECK(node.count_lines(" wandb=mine= resume== comet==$") == 1);
    cluster.wait_all_gone();
}
