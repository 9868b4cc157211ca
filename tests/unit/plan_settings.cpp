#include "tests/unit/plan_fake_surroundings.hpp"

using namespace ddprun;
using namespace ddprun::launcher;
using namespace ddprun::launcher::test;

namespace {

constexpr char kAtHead[] = " --rdzv-id j --rdzv-endpoint head";

struct Refused {
    std::string flags;
    std::string line;
};

void check_refused(const std::vector<Refused>& cases) {
    for (const Refused& it : cases) {
        CHECK(refusal_of(it.flags) == it.line);
    }
}

}  // namespace

TEST_CASE("nothing said means one worker here and torchrun's defaults") {
    const LaunchPlan plan = plan_of("");
    CHECK(plan.identity().settings == rdzv::JobSettings{});
    CHECK(plan.identity().slots == 1);
    CHECK(plan.identity().job == JobId{});
    CHECK(plan.is_single_node);
    CHECK_FALSE(plan.identity().node_rank.has_value());
    CHECK(plan.master_port == 0);
    CHECK(plan.identity().role == "default");
    CHECK(plan.agent.program == "train.py");
    CHECK(plan.agent.supervisor.rendezvous_lost_timeout == Milliseconds{60000});
    CHECK(plan.agent.supervisor.lasting_rendezvous_lost_timeout == Milliseconds{600000});
    CHECK(plan.warnings.empty());
    CHECK_FALSE(plan.is_insecure);
}

TEST_CASE("--nnodes may be the sizes that are allowed") {
    const LaunchPlan listed = plan_of(std::string{"--nnodes 2,4,8"} + kAtHead);
    CHECK(listed.identity().settings.node_sizes == std::vector<int>{2, 4, 8});
    CHECK(listed.identity().settings.min_nodes == 2);
    CHECK(listed.identity().settings.max_nodes == 8);
    const LaunchPlan alone = plan_of("--standalone --nnodes 1,2,4");
    CHECK(alone.identity().settings.node_sizes.empty());
    CHECK(alone.identity().settings.max_nodes == 1);
    const std::string form =
        "; write N, MIN:MAX or sizes, for example --nnodes 4, --nnodes 2:4 or --nnodes 2,4,8";
    std::string many = "1";
    for (int size = 2; size <= 65; ++size) {
        many += "," + std::to_string(size);
    }
    check_refused({
        {"--nnodes 4,2", "--nnodes 4,2: the sizes must grow, and 2 follows 4; write --nnodes 2,4"},
        {"--nnodes 2,4,4",
         "--nnodes 2,4,4: the sizes must grow, and 4 follows 4; write --nnodes "
         "2,4"},
        {"--nnodes 2:8,16",
         "--nnodes 2:8,16: either a range or sizes; write --nnodes 2:16 or "
         "--nnodes 2,8,16"},
        {"--nnodes 2,4:8",
         "--nnodes 2,4:8: either a range or sizes; write --nnodes 2:8 or "
         "--nnodes 2,4,8"},
        {"--nnodes 2,,4", "--nnodes 2,,4: not a number of nodes" + form},
        {"--nnodes 2,x:", "--nnodes 2,x:: not a number of nodes" + form},
        {"--nnodes 0,2", "--nnodes 0,2: at least 1 node is needed" + form},
        {"--nnodes 2,16385", "--nnodes 2,16385: at most 16384 nodes are possible"},
        {"--nnodes " + many, "--nnodes " + many +
                                 ": 65 sizes are listed, at most 64 are possible; "
                                 "write a range, with --node-unit if its sizes are multiples"},
    });
}

TEST_CASE("--node-unit makes sizes multiples of it") {
    const LaunchPlan even = plan_of(std::string{"--nnodes 1:9 --node-unit 2"} + kAtHead);
    CHECK(even.identity().settings.node_unit == 2);
    CHECK(even.identity().settings.min_nodes == 2);
    CHECK(even.identity().settings.max_nodes == 8);
    CHECK(
        plan_of(std::string{"--nnodes 4 --node-unit 4"} + kAtHead).identity().settings.min_nodes ==
        4);
    CHECK(plan_of("--node-unit 1").identity().settings == rdzv::JobSettings{});
    check_refused({
        {"--node-unit 0", "--node-unit 0: must be a whole number from 1 to 16384"},
        {"--node-unit 2",
         "--node-unit 2: larger than --nnodes 1, so no number of nodes would do; "
         "write --nnodes 2, or leave it out"},
        {"--nnodes 2:4 --node-unit 8",
         "--node-unit 8: larger than --nnodes 2:4, so no number of "
         "nodes would do; write --nnodes 8, or leave it out"},
        {"--nnodes 5:7 --node-unit 4",
         "--node-unit 4: --nnodes 5:7 has no multiple of it; write "
         "--nnodes 4 or --nnodes 8"},
        {"--nnodes 2,4 --node-unit 2",
         "--node-unit 2: --nnodes 2,4 lists the sizes already; leave "
         "one of both out"},
    });
}

TEST_CASE("--nnodes is a number or a range") {
    CHECK(plan_of("--nnodes 1").identity().settings.max_nodes == 1);
    CHECK(plan_of("--nnodes 1:1").is_single_node);
    const LaunchPlan fixed = plan_of(std::string{"--nnodes 4"} + kAtHead);
    CHECK(fixed.identity().settings.min_nodes == 4);
    CHECK(fixed.identity().settings.max_nodes == 4);
    const LaunchPlan range = plan_of(std::string{"--nnodes 2:16384"} + kAtHead);
    CHECK(range.identity().settings.min_nodes == 2);
    CHECK(range.identity().settings.max_nodes == 16384);
    const std::string form =
        "; write N, MIN:MAX or sizes, for example --nnodes 4, --nnodes 2:4 or --nnodes 2,4,8";
    check_refused({
        {"--nnodes 3:1", "--nnodes 3:1: the minimum 3 is above the maximum 1; write --nnodes 1:3"},
        {"--nnodes 0", "--nnodes 0: at least 1 node is needed" + form},
        {"--nnodes 0:2", "--nnodes 0:2: at least 1 node is needed" + form},
        {"--nnodes -1", "--nnodes -1: at least 1 node is needed" + form},
        {"--nnodes a", "--nnodes a: not a number of nodes" + form},
        {"--nnodes 1:2:3", "--nnodes 1:2:3: not a number of nodes" + form},
        {"--nnodes 2:", "--nnodes 2:: not a number of nodes" + form},
        {"--nnodes :2", "--nnodes :2: not a number of nodes" + form},
        {"--nnodes=", "--nnodes '': not a number of nodes" + form},
        {"--nnodes 1.5", "--nnodes 1.5: not a number of nodes" + form},
        {"--nnodes 99999999999", "--nnodes 99999999999: not a number of nodes" + form},
        {"--nnodes 16385", "--nnodes 16385: at most 16384 nodes are possible"},
    });
}

TEST_CASE("--nproc-per-node is a number or counts what is here") {
    FakeSurroundings machine;
    const auto slots = [&machine](const std::string& value) {
        return as_plan(make_plan({"--nproc-per-node", value, "train.py"}, machine))
            .identity()

            .slots;
    };
    CHECK(slots("8") == 8);
    CHECK(slots("cpu") == 6);
    CHECK(machine.gpu_questions == 0);
    CHECK(slots("auto") == 6);
    machine.gpus = std::vector<Gpu>(4);
    CHECK(slots("auto") == 4);
    CHECK(slots("gpu") == 4);
    machine.variables["CUDA_VISIBLE_DEVICES"] = "2,3";
    CHECK(slots("gpu") == 2);
    machine.variables["CUDA_VISIBLE_DEVICES"] = "";
    CHECK(slots("auto") == 6);
    const std::string form = ": must be a number of workers from 1 to 1024, or auto, gpu or cpu";
    for (const std::string value : {"0", "-1", "abc", "1025", "2.0", "xpu", "8x"}) {
        CHECK(refusal_of("--nproc-per-node " + value) == "--nproc-per-node " + value + form);
    }
    CHECK(refusal_of("--nproc-per-node gpu") ==
          "--nproc-per-node gpu: no GPU is visible here; check nvidia-smi and "
          "CUDA_VISIBLE_DEVICES, or write a number, cpu or auto");
    machine.cpus.resize(2000);
    CHECK(as_error(make_plan({"--nproc-per-node", "cpu", "train.py"}, machine)).line ==
          "--nproc-per-node cpu: means 2000 workers here; at most 1024 are possible, write a "
          "number");
}

TEST_CASE("budgets are whole numbers") {
    CHECK(plan_of("--max-node-losses 0").identity().settings.max_node_losses == 0);
    CHECK(plan_of("").identity().settings.max_node_losses == -1);
    CHECK(plan_of("--grow never").identity().settings.grow == false);
    CHECK(plan_of("--grow auto").identity().settings.grow);
    CHECK(plan_of("").identity().settings.same == rdzv::Sameness::Warn);
    CHECK(plan_of("--same warn").identity().settings.same == rdzv::Sameness::Warn);
    CHECK(plan_of("--same strict").identity().settings.same == rdzv::Sameness::Strict);
    CHECK(plan_of("--same off").identity().settings.same == rdzv::Sameness::Off);
    check_refused({
        {"--max-restarts -1", "--max-restarts -1: must be a whole number from 0 to 1000000"},
        {"--max-restarts 1.5", "--max-restarts 1.5: must be a whole number from 0 to 1000000"},
        {"--max-node-losses many",
         "--max-node-losses many: must be a whole number from 0 to 1000000"},
        {"--grow yes", "--grow yes: must be auto or never"},
        {"--same yes", "--same yes: must be warn or strict or off"},
    });
}

TEST_CASE("checkpoints in memory have a size, and copies of them need it") {
    CHECK_FALSE(plan_of("").agent.memory.bytes_max.has_value());
    CHECK(plan_of("--memory-checkpoints 8G").agent.memory.bytes_max == std::uint64_t{8} << 30);
    const LaunchPlan copied =
        plan_of(std::string{"--nnodes 2 --memory-checkpoints 1M --memory-replicas 1"} + kAtHead);
    CHECK(copied.identity().settings.memory_replicas == 1);
    REQUIRE(copied.notes.size() == 1);
    CHECK(copied.notes[0].find("not encrypted") != std::string::npos);
    CHECK(plan_of("--memory-checkpoints 1M --memory-replicas 1").notes.empty());
    check_refused({{"--memory-replicas 1",
                    "--memory-replicas 1: it needs --memory-checkpoints SIZE, with room for two "
                    "checkpoints of this node and two of another one"},
                   {"--memory-checkpoints 1023K",
                    "--memory-checkpoints 1023K: must be a number of bytes, at least 1048576, such "
                    "as 64M or 2G"},
                   {"--memory-checkpoints 1M --memory-replicas 2",
                    "--memory-replicas 2: must be a whole number from 0 to 1"}});
    CHECK(plan_of("--memory-replicas 0").identity().settings.memory_replicas == 0);
}

TEST_CASE("a level of containment is taken or refused, never another one") {
    CHECK_FALSE(plan_of("").containment);
    CHECK(plan_of("--containment cgroup").containment == ContainmentLevel::Cgroup);
    CHECK(plan_of("--containment pid-namespace").containment == ContainmentLevel::PidNamespace);
    CHECK(plan_of("--containment keeper").containment == ContainmentLevel::Keeper);
    CHECK(plan_of("--containment session").containment == ContainmentLevel::Session);
    check_refused({
        {"--containment C3",
         "--containment C3: must be cgroup or pid-namespace or keeper or session"},
    });
}

TEST_CASE("times are seconds with fractions") {
    const LaunchPlan plan = plan_of(
        "--failure-grace 0.25 --shutdown-timeout 7 --rdzv-lost-timeout 90 "
        "--rdzv-conf last_call_timeout=2.5,join_timeout=60,grow_delay=0");
    CHECK(plan.identity().settings.failure_grace == Milliseconds{250});
    CHECK(plan.identity().settings.shutdown_timeout == Milliseconds{7000});
    CHECK(plan.agent.supervisor.rendezvous_lost_timeout == Milliseconds{90000});
    CHECK(plan.identity().settings.patience == Milliseconds{2500});
    CHECK(plan.identity().settings.join_timeout == Milliseconds{60000});
    CHECK(plan.identity().settings.grow_delay == Milliseconds{0});
    for (const std::string value : {"5s", "-1", "nan", "inf", "1e99", "x", "1,5", "0x10"}) {
        CHECK(refusal_of("--failure-grace " + value) ==
              "--failure-grace " + value +
                  ": must be seconds, at least 0; write a number such as 30 or 0.5, without a "
                  "unit");
    }
}

TEST_CASE("the hang timeout is a number of seconds, learned, or none") {
    CHECK(plan_of("").identity().settings.hang_timeout == Milliseconds(0));
    CHECK(plan_of("").agent.supervisor.hang_notice == Milliseconds(600000));
    CHECK(plan_of("--hang-notice 0").agent.supervisor.hang_notice == Milliseconds(0));
    CHECK(plan_of("--hang-timeout 0").identity().settings.hang_timeout == Milliseconds(0));
    CHECK(plan_of("--hang-timeout 90.5").identity().settings.hang_timeout == Milliseconds(90500));
    CHECK_FALSE(plan_of("--hang-timeout 90").identity().settings.learns_hang_timeout);
    const LaunchPlan learned = plan_of("--hang-timeout auto");
    CHECK(learned.identity().settings.learns_hang_timeout);
    CHECK(learned.identity().settings.hang_timeout == Milliseconds(0));
    check_refused({
        {"--hang-timeout 0.5", "--hang-timeout 0.5: it must be at least 1 s; 0 is never"},
        {"--hang-timeout -1",
         "--hang-timeout -1: it must be auto or a number of seconds; 0 is never"},
        {"--hang-timeout always",
         "--hang-timeout always: it must be auto or a number of seconds; 0 is never"},
    });
}

TEST_CASE("torchrun's variable gives the shutdown timeout where nothing else does") {
    const Variables three{{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "3"}};
    CHECK(plan_of("", three).identity().settings.shutdown_timeout == Milliseconds{3000});
    CHECK(plan_of("--shutdown-timeout 9", three).identity().settings.shutdown_timeout ==
          Milliseconds{9000});
    CHECK(plan_of("", {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "3"}, {"PET_SHUTDOWN_TIMEOUT", "4"}})
              .identity()

              .settings.shutdown_timeout == Milliseconds{4000});
}

TEST_CASE("the grace after a failure is never above the shutdown timeout") {
    const LaunchPlan silent = plan_of("--shutdown-timeout 2");
    CHECK(silent.identity().settings.failure_grace == Milliseconds{2000});
    CHECK(silent.warnings.empty());
    const LaunchPlan said = plan_of("--shutdown-timeout 2 --failure-grace 8");
    CHECK(said.identity().settings.failure_grace == Milliseconds{2000});
    CHECK(said.warnings ==
          Arguments{"--failure-grace 8 is cut to the shutdown timeout of 2 s: after a failure "
                    "nobody waits longer"});
}

TEST_CASE("--rdzv-conf takes our keys, and a flag of the same meaning wins") {
    const LaunchPlan plan =
        plan_of("--rdzv-conf failure_grace=1,lost_timeout=5,max_node_losses=2,failure_grace=3");
    CHECK(plan.identity().settings.failure_grace == Milliseconds{3000});
    CHECK(plan.agent.supervisor.rendezvous_lost_timeout == Milliseconds{5000});
    CHECK(plan.identity().settings.max_node_losses == 2);
    const LaunchPlan flags = plan_of(
        "--rdzv-conf failure_grace=1,lost_timeout=5,max_node_losses=2 --failure-grace 4 "
        "--rdzv-lost-timeout 8 --max-node-losses 9");
    CHECK(flags.identity().settings.failure_grace == Milliseconds{4000});
    CHECK(flags.agent.supervisor.lasting_rendezvous_lost_timeout == Milliseconds{8000});
    CHECK(flags.identity().settings.max_node_losses == 9);
    const Arguments blanks = {"--rdzv-conf", " join_timeout = 7 , last_call_timeout=1", "train.py"};
    CHECK(as_plan(outcome_of(blanks)).identity().settings.join_timeout == Milliseconds{7000});
    CHECK(plan_of("--rdzv-conf=").warnings.empty());
}

TEST_CASE("torchrun's other --rdzv-conf keys are taken with a warning that says why") {
    for (const std::string key :
         {"timeout", "close_timeout", "heartbeat_timeout", "keep_alive_interval",
          "keep_alive_max_attempt", "read_timeout", "is_host", "rank", "protocol"}) {
        const LaunchPlan plan = plan_of("--rdzv-conf " + key + "=1");
        REQUIRE(plan.warnings.size() == 1);
        CHECK_THAT(plan.warnings[0],
                   Catch::StartsWith("--rdzv-conf " + key + "=1 has no effect: "));
    }
    CHECK(plan_of("--rdzv-conf store_type=tcp").warnings.empty());
}

TEST_CASE("a wrong --rdzv-conf is refused") {
    const std::string form =
        " is not KEY=VALUE; write for example "
        "join_timeout=600,last_call_timeout=30";
    check_refused({
        {"--rdzv-conf x", "--rdzv-conf x: 'x'" + form},
        {"--rdzv-conf join_timeout=", "--rdzv-conf join_timeout=: 'join_timeout='" + form},
        {"--rdzv-conf =1", "--rdzv-conf =1: '=1'" + form},
        {"--rdzv-conf rank=1,", "--rdzv-conf rank=1,: ''" + form},
        {"--rdzv-conf store_type=file",
         "--rdzv-conf store_type=file: ddprun serves its rendezvous over TCP; leave it out"},
        {"--rdzv-conf max_node_losses=x",
         "--rdzv-conf max_node_losses=x: must be a whole number from 0 to 1000000"},
    });
    CHECK_THAT(refusal_of("--rdzv-conf join_timout=3"),
               Catch::StartsWith("--rdzv-conf join_timout=3: unknown key; known are "
                                 "last_call_timeout, join_timeout, grow_delay, max_node_losses, "
                                 "failure_grace, lost_timeout, timeout, "));
}
