#include <csignal>

#include "launcher/plan/flags.hpp"
#include "tests/unit/plan_fake_surroundings.hpp"

using namespace ddprun;
using namespace ddprun::launcher;
using namespace ddprun::launcher::test;

TEST_CASE("flags end at the program and all behind it is untouched") {
    struct Case {
        Arguments arguments;
        Arguments behind;
    };
    const std::vector<Case> cases = {
        {{"train.py", "--help"}, {"--help"}},
        {{"train.py", "--nnodes", "3:1", "-h"}, {"--nnodes", "3:1", "-h"}},
        {{"train.py", "--", "--version"}, {"--", "--version"}},
        {{"train.py", "--lr="}, {"--lr="}},
        {{"train.py", "", " ", "-"}, {"", " ", "-"}},
        {{"--max-restarts", "2", "train.py", "--max-restarts", "7"}, {"--max-restarts", "7"}},
        {{"--standalone", "train.py", "--unknown"}, {"--unknown"}},
        {{"--", "train.py", "--", "x"}, {"--", "x"}},
        {{"--rdzv-endpoint=", "train.py", "a"}, {"a"}},
        {{"--rdzv-endpoint", "", "train.py", "a"}, {"a"}},
        {{"--redirects=0:1,1:2", "train.py", "[1,2]"}, {"[1,2]"}},
        {{"train.py", "--rdzv-id="}, {"--rdzv-id="}},
    };
    for (const Case& it : cases) {
        CAPTURE(it.arguments);
        const LaunchPlan plan = as_plan(outcome_of(it.arguments));
        Arguments expected = {"/usr/bin/python3", "-u", "train.py"};
        expected.insert(expected.end(), it.behind.begin(), it.behind.end());
        CHECK(plan.agent.supervisor.command == expected);
        CHECK(plan.identity().settings.max_restarts ==
              (it.arguments.front() == "--max-restarts" ? 2 : 0));
    }
}

TEST_CASE("every long flag has a dashed and an underscored spelling") {
    for (const Flag& flag : all_flags()) {
        std::string underscored{flag.name};
        std::replace(underscored.begin(), underscored.end(), '-', '_');
        for (const std::string& spelling : {std::string{flag.name}, underscored}) {
            CAPTURE(spelling);
            const Arguments arguments = flag.is_switch()
                                            ? Arguments{"--" + spelling, "train.py"}
                                            : Arguments{"--" + spelling, "value", "train.py"};
            const auto line = read_command_line(arguments, FakeSurroundings{});
            REQUIRE(line.has_value());
            CHECK(line->program() == Arguments{"train.py"});
            const bool is_seen =
                flag.is_switch() ? line->is_on(flag.name) : line->value(flag.name).has_value();
            CHECK(is_seen);
        }
    }
}

TEST_CASE("values are given in any of the usual forms and the last one counts") {
    for (const char* flags : {"--max-restarts 4", "--max-restarts=4", "--max_restarts 4",
                              "--max_restarts=4", "--max-restarts 9 --max_restarts=4"}) {
        CHECK(plan_of(flags).identity().settings.max_restarts == 4);
    }
    for (const char* flags : {"-t 3", "-t3", "-t=3", "--tee=3", "--tee 3", "-t 0 --tee 3"}) {
        CHECK(plan_of(flags).agent.output.console.at(0).is_teed_stdout);
    }
    CHECK(plan_of("--standalone=0 --nnodes 1").is_single_node);
}

TEST_CASE("an unknown flag is refused with the nearest one") {
    struct Case {
        const char* flags;
        const char* line;
    };
    constexpr const char* kElse =
        "; flags of your program come after its name, those of ddprun are in ddprun --help-all";
    const std::vector<Case> cases = {
        {"--nnode 2", "unknown flag --nnode; did you mean --nnodes?"},
        {"--nnodse=2", "unknown flag --nnodse; did you mean --nnodes?"},
        {"---nnodes 2", "unknown flag ---nnodes; did you mean --nnodes?"},
        {"--max_restart 1", "unknown flag --max_restart; did you mean --max-restarts?"},
        {"--nproc-per-nod 1", "unknown flag --nproc-per-nod; did you mean --nproc-per-node?"},
        {"--nproc 1", "unknown flag --nproc; flags are not abbreviated: write --nproc-per-node"},
        {"--master x",
         "unknown flag --master; flags are not abbreviated: write --master-addr or --master-port"},
        {"-np 4", "unknown flag -np; did you mean --nproc-per-node?"},
        {"-n 4", "unknown flag -n; did you mean --nproc-per-node?"},
        {"--nprocs 4", "unknown flag --nprocs; did you mean --nproc-per-node?"},
        {"--num_processes=4", "unknown flag --num_processes; did you mean --nproc-per-node?"},
        {"--gpus-per-node 4", "unknown flag --gpus-per-node; did you mean --nproc-per-node?"},
        {"--num-machines 2", "unknown flag --num-machines; did you mean --nnodes?"},
        {"-N 2", "unknown flag -N; did you mean --nnodes?"},
        {"--machine_rank 1", "unknown flag --machine_rank; did you mean --node-rank?"},
        {"--main_process_ip h", "unknown flag --main_process_ip; did you mean --master-addr?"},
        {"--main-process-port 1", "unknown flag --main-process-port; did you mean --master-port?"},
        {"--restarts 1", "unknown flag --restarts; did you mean --max-restarts?"},
    };
    for (const Case& it : cases) {
        CHECK(refusal_of(it.flags) == it.line);
    }
    for (const std::string flag : {"--epochs", "--seed", "--test", "-x", "-5", "--x"}) {
        CHECK(refusal_of(flag + " 3") == "unknown flag " + flag + kElse);
    }
}

TEST_CASE("a flag without its value is refused, also when another flag follows") {
    const UsageError at_end = as_error(outcome_of({"--rdzv_id"}));
    CHECK(at_end.line == "--rdzv_id needs a value, but the line ends there; write --rdzv_id ID");
    CHECK(at_end.exit_code == 2);
    CHECK(refusal_of("--rdzv-id --nnodes 2") ==
          "--rdzv-id needs a value, but the flag --nnodes follows; write --rdzv-id ID");
    CHECK(refusal_of("--log-dir -m") ==
          "--log-dir needs a value, but the flag -m follows; write --log-dir DIR");
}

TEST_CASE("the command line goes before PET variables and these before the default") {
    const Variables three{{"PET_MAX_RESTARTS", "3"}};
    CHECK(plan_of("").identity().settings.max_restarts == 0);
    CHECK(plan_of("", three).identity().settings.max_restarts == 3);
    CHECK(plan_of("--max-restarts 5", three).identity().settings.max_restarts == 5);
    CHECK(plan_of("--max-restarts 0", three).identity().settings.max_restarts == 0);
    CHECK(plan_of("", {{"PET_MAX_RESTARTS", ""}}).identity().settings.max_restarts == 0);
    CHECK(plan_of("", {{"PET_NPROC_PER_NODE", "4"}}).identity().slots == 4);
    CHECK(plan_of("", {{"PET_FAILURE_GRACE", "1.5"}}).identity().settings.failure_grace ==
          Milliseconds{1500});
}

TEST_CASE("a PET variable of a switch is a number, and the command line can turn it off") {
    const Arguments module = {"/usr/bin/python3", "-u", "-m", "train.py"};
    const Arguments script = {"/usr/bin/python3", "-u", "train.py"};
    for (const char* on : {"1", "2", "-1", "01"}) {
        CHECK(plan_of("", {{"PET_MODULE", on}}).agent.supervisor.command == module);
    }
    for (const char* off : {"0", "00", ""}) {
        CHECK(plan_of("", {{"PET_MODULE", off}}).agent.supervisor.command == script);
    }
    CHECK(plan_of("--module=0", {{"PET_MODULE", "1"}}).agent.supervisor.command == script);
    CHECK(plan_of("--module=0", {{"PET_MODULE", "true"}}).agent.supervisor.command == script);
    CHECK(refusal_of("", {{"PET_STANDALONE", "true"}}) ==
          "PET_STANDALONE=true: must be a whole number; write PET_STANDALONE=1 for on or "
          "PET_STANDALONE=0 for off");
}

TEST_CASE("variables that torchrun does not read are not read") {
    CHECK(plan_of("", {{"PET_LOGS_SPECS", "x"}, {"PET_NUMA_BINDING", "node"}}).identity().slots ==
          1);
    CHECK(std::holds_alternative<LaunchPlan>(
        outcome_of({"train.py"}, {{"PET_HELP", "1"}, {"PET_VERSION", "1"}})));
}

TEST_CASE("an error about a variable names the variable") {
    CHECK(refusal_of("", {{"PET_NNODES", "3:1"}}) ==
          "PET_NNODES=3:1: the minimum 3 is above the maximum 1; write --nnodes 1:3");
    CHECK(refusal_of("", {{"PET_MAX_RESTARTS", "x"}}) ==
          "PET_MAX_RESTARTS=x: must be a whole number from 0 to 1000000");
    CHECK(refusal_of("", {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "soon"}}) ==
          "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=soon: must be seconds, at least 0; write a number such "
          "as 30 or 0.5, without a unit");
    CHECK(refusal_of("", {{"PET_RDZV_CONF", "join_timeout=0"}}) ==
          "PET_RDZV_CONF join_timeout=0: must be seconds, at least 0.001; write a number such as "
          "30 or 0.5, without a unit");
}

TEST_CASE("torchrun's choices that choose nothing here are accepted, and no others") {
    for (const char* flags :
         {"--event-log-handler null", "--start-method spawn", "--start-method fork",
          "--start_method=forkserver", "--monitor-interval 0.1", "--monitor-interval 5",
          "--logs-specs=", "--logs-specs default", "--numa-binding=", "--duplicate-stdout-filters=",
          "--run-path=0", "--virtual-local-rank=false", "--use-env"}) {
        CHECK(plan_of(flags).warnings.empty());
    }
    CHECK(plan_of("--event-log-handler console").warnings ==
          std::vector<std::string>{"--event-log-handler console has no effect: ddprun says on its "
                                   "console what happens, not as JSON"});
    CHECK(plan_of("", {{"TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0"},
                       {"TORCHELASTIC_ENABLE_FILE_TIMER", "true"},
                       {"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", ""}})
              .warnings.empty());
    CHECK(refusal_of("--event-log-handler mine") ==
          "--event-log-handler mine: ddprun has no event handlers; leave it out");
    CHECK(refusal_of("--logs-specs mine") ==
          "--logs-specs mine: ddprun has no log plug-ins; leave it out, --log-dir, --redirects and "
          "--tee choose what is kept");
    CHECK(refusal_of("", {{"PET_START_METHOD", "bogus"}}) ==
          "PET_START_METHOD=bogus: must be spawn, fork or forkserver, which mean the same here: "
          "workers are executed; leave it out");
}

TEST_CASE("no argument at all says how to go on") {
    const UsageError error = as_error(outcome_of({}));
    CHECK(error.exit_code == 2);
    CHECK(error.line ==
          "no program given; write ddprun [flags] PROGRAM [its arguments ...], ddprun --help "
          "shows examples");
    CHECK(as_error(outcome_of({"--nnodes", "1"})).line == error.line);
    CHECK(as_error(outcome_of({"--"})).line == error.line);
}

TEST_CASE("an error is one line whatever was typed") {
    for (const char* value : {"a\nb", "\x1b[31m", "\r", "\x7f"}) {
        const UsageError error = as_error(outcome_of({"--nnodes", value, "train.py"}));
        CHECK(std::none_of(error.line.begin(), error.line.end(), [](char c) {
            return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
        }));
        const UsageError unknown =
            as_error(outcome_of({std::string{"--flag"} + value, "train.py"}));
        CHECK(unknown.line.find_first_of("\n\r\x1b\x7f") == std::string::npos);
        const UsageError program = as_error(outcome_of({value}));
        CHECK(program.line.find_first_of("\n\r\x1b\x7f") == std::string::npos);
    }
}
