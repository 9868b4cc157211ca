// When a node has to be gone, according to flags and surroundings.

#include "tests/unit/plan_fake_surroundings.hpp"

using namespace ddprun;
using namespace ddprun::launcher;
using namespace ddprun::launcher::test;

namespace {

const Variables kSlurm = {
    {"SLURM_JOB_ID", "42"},          {"SLURM_STEP_ID", "0"},
    {"SLURM_STEP_NODELIST", "gpu1"}, {"SLURM_STEP_TASKS_PER_NODE", "1"},
    {"SLURMD_NODENAME", "gpu1"},     {"SLURM_JOB_NODELIST", "gpu1"},
};

LaunchPlan plan_in_slurm(const std::string& flags, const Variables& more = {}) {
    Variables variables = kSlurm;
    variables.insert(more.begin(), more.end());
    return plan_of(flags, variables);
}

}  // namespace

TEST_CASE("a scheduler is known to kill 30 s after its SIGTERM, unless times are given") {
    CHECK_FALSE(plan_of("").agent.supervisor.kill_wait);
    CHECK(plan_in_slurm("").agent.supervisor.kill_wait == Milliseconds(30000));
    CHECK(plan_in_slurm("--nnodes 1").agent.supervisor.kill_wait == Milliseconds(30000));
    CHECK(plan_of("", {{"KUBERNETES_SERVICE_HOST", "10.0.0.1"}}).agent.supervisor.kill_wait ==
          Milliseconds(30000));
    CHECK_FALSE(plan_in_slurm("--place none").agent.supervisor.kill_wait);
    CHECK_FALSE(plan_in_slurm("--shutdown-timeout 90").agent.supervisor.kill_wait);
    CHECK_FALSE(plan_in_slurm("--kill-wait 0").agent.supervisor.kill_wait);
    CHECK(plan_in_slurm("--kill-wait 120").agent.supervisor.kill_wait == Milliseconds(120000));
    CHECK(plan_of("--kill-wait 0.5").agent.supervisor.kill_wait == Milliseconds(500));
    CHECK_THAT(refusal_of("--kill-wait soon"), Catch::StartsWith("--kill-wait soon: "));
}

TEST_CASE("Slurm tells when the job reaches its time limit") {
    CHECK_FALSE(plan_in_slurm("").place->ends_at);
    CHECK(plan_in_slurm("", {{"SLURM_JOB_END_TIME", "1795410000"}}).place->ends_at == 1795410000);
    // By hand the number of nodes, with the same end.
    CHECK(plan_in_slurm("--nnodes 1", {{"SLURM_JOB_END_TIME", "1795410000"}}).place->ends_at);
    for (const char* never : {"0", "4294967295", "4294967294", ""}) {
        CHECK_FALSE(plan_in_slurm("", {{"SLURM_JOB_END_TIME", never}}).place->ends_at);
    }
}

TEST_CASE("what may say that a node will be taken away is named in one flag") {
    using agent::DrainOnAws;
    using agent::DrainOnCommand;
    using agent::DrainOnFile;
    CHECK(plan_of("").agent.drain_on.empty());
    CHECK(plan_of("--drain-on=").agent.drain_on.empty());
    const std::vector<agent::DrainSource> all = {
        DrainOnAws{{"169.254.169.254", 80}}, DrainOnFile{"/run/leave"},
        DrainOnFile{"/home/user/leave"}, DrainOnCommand{"a,b"}};
    CHECK(plan_of("--drain-on aws,file:/run/leave,file:leave,cmd:a,b").agent.drain_on == all);
    for (const std::string wrong : {"gcp", "", "file:", "file:/run/", "cmd:"}) {
        const std::string given = "--drain-on aws," + wrong;
        CHECK(refusal_of(given) ==
              given + ": '" + wrong + "' is none of aws, file:PATH, cmd:COMMAND");
    }
}

TEST_CASE("the metadata server is where AWS's own tools look for it") {
    const auto server = [](const Variables& variables) {
        return std::get<agent::DrainOnAws>(
                   plan_of("--drain-on aws", variables).agent.drain_on.at(0))
            .metadata;
    };
    constexpr char kName[] = "AWS_EC2_METADATA_SERVICE_ENDPOINT";
    CHECK(server({{kName, "http://127.0.0.1:1338"}}) == rdzv::Endpoint{"127.0.0.1", 1338});
    CHECK(server({{kName, "http://[fd00:ec2::254]/"}}) == rdzv::Endpoint{"fd00:ec2::254", 80});
    CHECK(server({{kName, ""}}).host == "169.254.169.254");
    CHECK(server({{"AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "IPv6"}}).host == "fd00:ec2::254");
    CHECK(refusal_of("--drain-on aws", {{kName, "127.0.0.1"}}) ==
          "AWS_EC2_METADATA_SERVICE_ENDPOINT=127.0.0.1: must be http://HOST or http://HOST:PORT");
}

TEST_CASE("a job goes back into the queue only where Slurm can be asked for it") {
    const auto plan_with = [](const std::string& flags, bool has_scontrol, Variables variables) {
        FakeSurroundings surroundings;
        if (has_scontrol) {
            surroundings.executables.insert("/usr/bin/scontrol");
        }
        surroundings.variables.merge(variables);
        return as_plan(make_plan(words(flags + " train.py"), surroundings));
    };
    CHECK(plan_with("", true, kSlurm).requeues == 0);
    CHECK(plan_with("--requeue 0", true, {}).warnings.empty());
    const LaunchPlan able = plan_with("--requeue 3", true, kSlurm);
    CHECK(able.requeues == 3);
    CHECK(able.scontrol == "/usr/bin/scontrol");
    CHECK(able.slurm_job == "42");
    CHECK(able.warnings.empty());
    const LaunchPlan lacking = plan_with("--requeue 3", false, kSlurm);
    CHECK(lacking.requeues == 0);
    CHECK(lacking.warnings ==
          Arguments{"--requeue 3 has no effect: there is no scontrol in PATH, which asks Slurm for "
                    "it; in a container, mount it with its configuration and munge's socket"});
    CHECK(plan_with("--requeue 3", true, {}).warnings ==
          Arguments{"--requeue 3 has no effect: this is no job of Slurm; start it with sbatch"});
    CHECK(plan_with("--requeue 3 --place none", true, kSlurm).requeues == 0);
    CHECK(refusal_of("--requeue -1") == "--requeue -1: must be a whole number from 0 to 1000000");
}
