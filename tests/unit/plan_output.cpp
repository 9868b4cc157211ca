#include <sstream>

#include "launcher/machine/real_surroundings.hpp"
#include "launcher/plan/flags.hpp"
#include "tests/support/places.hpp"
#include "tests/unit/plan_fake_surroundings.hpp"
#include "worker_runtime/contract/exit_codes.hpp"

using namespace ddprun;
using namespace ddprun::launcher;
using namespace ddprun::launcher::test;

namespace {

/// The streams of a rank as letters: o and e are shown, O and E are tee'd, - is only logged.
std::string console_of(const LaunchPlan& plan, int rank) {
    const auto found = plan.agent.output.console.find(rank);
    const agent::OutputChoice it =
        found == plan.agent.output.console.end() ? agent::OutputChoice{} : found->second;
    const char out = it.is_teed_stdout ? 'O' : 'o';
    const char err = it.is_teed_stderr ? 'E' : 'e';
    return {it.shows_stdout ? out : '-', it.shows_stderr ? err : '-'};
}

std::string console_of(const std::string& flags) {
    const LaunchPlan plan = plan_of("--nproc-per-node 3 " + flags);
    return console_of(plan, 0) + " " + console_of(plan, 1) + " " + console_of(plan, 2);
}

std::string shown_help() {
    return std::get<ShowText>(outcome_of({"--help"})).text;
}

std::string shown_help_all() {
    return std::get<ShowText>(outcome_of({"--help-all"})).text;
}

/// How many lines `text` has, each checked to fit a terminal.
int lines_that_fit(const std::string& text) {
    std::istringstream lines{text};
    int count = 0;
    for (std::string line; std::getline(lines, line); ++count) {
        CAPTURE(line);
        CHECK(line.size() <= 90);
        CHECK((line.empty() || line.back() != ' '));
    }
    CHECK(text.back() == '\n');
    return count;
}

/// Whether a line of `help` is this flag's.
bool names_flag(const std::string& help, const Flag& flag) {
    const std::string name = "--" + std::string{flag.name};
    for (const char* before : {"\n  ", ", "}) {
        for (const char* behind : {" ", "\n"}) {
            if (help.find(before + name + behind) != std::string::npos) {
                return true;
            }
        }
    }
    return false;
}

}  // namespace

TEST_CASE("--log-keep is at least this run, and says where it has no effect") {
    CHECK(plan_of("").log_runs_kept == 0);
    CHECK(plan_of("--log-keep 20").log_runs_kept == 20);
    CHECK(refusal_of("--log-keep 0").find("--log-keep 0") != std::string::npos);
    const LaunchPlan plan = plan_of("--log-dir /dev/null --log-keep 2");
    REQUIRE(plan.warnings.size() == 1);
    CHECK(plan.warnings[0] ==
          "--log-keep 2 has no effect: with --log-dir /dev/null there are no logs");
}

TEST_CASE("redirected streams vanish from the console and tee'd ones stay") {
    struct Case {
        const char* flags;
        const char* console;
    };
    const std::vector<Case> cases = {
        {"", "oe oe oe"},
        {"-r 0 -t 0", "oe oe oe"},
        {"--redirects 1", "-e -e -e"},
        {"--redirects 2", "o- o- o-"},
        {"-r 3", "-- -- --"},
        {"--tee 1", "Oe Oe Oe"},
        {"-t 3", "OE OE OE"},
        {"-r 3 -t 1", "O- O- O-"},
        {"-r 1 -t 3", "OE OE OE"},
        {"-r 0:3", "-- oe oe"},
        {"-r 0:3,2:1 -t 1:2", "-- oE -e"},
        {"-r 0:3,0:1", "-e oe oe"},
        {"-r 3 --tee 0:3", "OE -- --"},
        {"-r 3 --log-dir /dev/null", "oe oe oe"},
        {"-t 3 --log-dir /dev/null", "oe oe oe"},
    };
    for (const Case& it : cases) {
        CAPTURE(it.flags);
        CHECK(console_of(it.flags) == it.console);
    }
}

TEST_CASE("lines to be kept apart hold one of several texts and are those of tee'd streams") {
    using Texts = std::vector<std::string>;
    const auto texts = [](const std::string& value) {
        const LaunchPlan plan =
            as_plan(outcome_of({"-t", "1", "--duplicate-stdout-filters", value, "train.py"}));
        CHECK(plan.warnings.empty());
        CHECK(plan.agent.output.stderr_filters.empty());
        return plan.agent.output.stdout_filters;
    };
    CHECK(texts("loss") == Texts{"loss"});
    CHECK(texts("loss = ,lr") == Texts{"loss = ", "lr"});
    CHECK(texts("a,,b") == Texts{"a,b"});
    CHECK(texts("a,,,b") == Texts{"a,", "b"});
    CHECK(texts(",a,").size() == 1);
    CHECK(texts("").empty());
    CHECK(plan_of("-t 1 --duplicate-stderr-filters x").warnings ==
          Texts{"--duplicate-stderr-filters x has no effect: it copies lines of tee'd streams, and "
                "--tee names none here"});
    CHECK(plan_of("-t 2 --duplicate-stderr-filters x").warnings.empty());
    CHECK(plan_of("-t 2 --log-dir /dev/null --duplicate-stderr-filters x").warnings ==
          Texts{"--duplicate-stderr-filters x has no effect: it copies lines of tee'd streams, and "
                "there are no log files"});
}

TEST_CASE("local ranks may have several digits") {
    const LaunchPlan plan =
        plan_of("--nproc-per-node 12 -r 10:1,11:2 --local-ranks-filter 11,0,11");
    CHECK(console_of(plan, 9) == "oe");
    CHECK(console_of(plan, 10) == "-e");
    CHECK(console_of(plan, 11) == "o-");
    CHECK(plan.local_ranks_filter == std::vector<int>{0, 11});
    CHECK(plan.warnings.empty());
}

TEST_CASE("wrong streams and ranks are refused") {
    const std::string form =
        ": not a choice of streams; write 0 (none), 1 (stdout), 2 (stderr) or "
        "3 (both), or by local rank, for example 0:3,1:1";
    for (const std::string value :
         {"4", "-1", "a", "0:4", "a:1", "-1:1", "0:1:2", "1,2", "0:1,", "0:1,2", "1.0", "0:"}) {
        CHECK(refusal_of("--redirects " + value) == "--redirects " + value + form);
        CHECK(refusal_of("-t " + value) == "--tee " + value + form);
    }
    for (const std::string value : {"a", "-1", "0,", "0;1", "0:1"}) {
        CHECK(refusal_of("--local-ranks-filter " + value) ==
              "--local-ranks-filter " + value +
                  ": not a list of local ranks; write for example 0,1");
    }
    CHECK(refusal_of("--prefix maybe") == "--prefix maybe: must be auto or always or never");
}

TEST_CASE("ranks of the job are chosen by number, or as the last") {
    const LaunchPlan plan = plan_of("--nproc-per-node 4 --ranks-filter 2,last,0 --fold off");
    CHECK(plan.agent.output.ranks_filter == agent::RanksFilter{.ranks = {0, 2}, .has_last = true});
    CHECK_FALSE(plan.agent.output.folds);
    CHECK(plan.agent.output.ranks_filter.shows(Rank(7), 8));
    CHECK(plan.agent.output.ranks_filter.shows(Rank(2), 8));
    CHECK_FALSE(plan.agent.output.ranks_filter.shows(Rank(1), 8));
    CHECK(plan_of("").agent.output.ranks_filter.shows(Rank(1), 8));
    CHECK(plan_of("").agent.output.folds);
    for (const std::string value : {"a", "-1", "0,", "first", "0-3"}) {
        CHECK(refusal_of("--ranks-filter " + value) ==
              "--ranks-filter " + value + ": not a list of ranks; write for example 0,3 or 0,last");
    }
    CHECK(refusal_of("--fold on") == "--fold on: must be auto or off");
    CHECK(plan_of("--nproc-per-node 2 --ranks-filter 0,2").warnings ==
          Arguments{"--ranks-filter 0,2: the job has no rank 2, only 0 to 1"});
}

TEST_CASE("a local rank that this node does not have is worth a warning") {
    for (const std::string flags : {"--redirects 2:1", "--tee 2:1", "--local-ranks-filter 0,2"}) {
        CHECK(plan_of("--nproc-per-node 2 " + flags).warnings ==
              Arguments{flags + ": this node has no local rank 2, only 0 to 1"});
    }
}

TEST_CASE("logs go where they are wanted, as an absolute path") {
    const auto folder = [](const std::string& flags, const Variables& variables = {}) {
        return plan_of(flags, variables).log_dir;
    };
    CHECK(folder("") == "/tmp/ddprun-1000");
    CHECK(folder("", {{"TMPDIR", "/scratch/"}}) == "/scratch/ddprun-1000");
    CHECK(folder("", {{"TMPDIR", ""}}) == "/tmp/ddprun-1000");
    CHECK(folder("--log-dir=") == "/tmp/ddprun-1000");
    CHECK(folder("--log-dir /var/log/jobs/") == "/var/log/jobs");
    CHECK(folder("--log-dir logs") == "/home/user/logs");
    CHECK(folder("--log-dir ./a/../logs") == "/home/user/logs");
    CHECK(folder("--log-dir /tmp") == "/tmp");
    CHECK(folder("--log-dir /dev/null").empty());
    CHECK(folder("", {{"PET_LOG_DIR", "/dev/null"}}).empty());
    CHECK(refusal_of("--log-dir train.py") ==
          "--log-dir train.py: is not a folder; name one, which is made if it is missing, or "
          "/dev/null for no files");
}

TEST_CASE("standbys import the modules that --warm names, of a program that Python runs") {
    CHECK(plan_of("").agent.warm.modules.empty());
    CHECK(plan_of("--warm off").agent.warm.modules.empty());
    const std::vector<std::string> two{"torch", "torch._dynamo"};
    CHECK(plan_of("--warm torch,torch._dynamo").agent.warm.modules == two);
    CHECK(plan_of("", {{"PET_WARM", "torch,torch._dynamo"}}).agent.warm.modules == two);
    for (const std::string text : {"torch,on", "torch,", "a b", ".torch", "torch/nn", ""}) {
        CHECK(as_error(outcome_of({"--warm", text, "train.py"}))
                  .line.find("is no module of Python; name those") != std::string::npos);
    }
    const LaunchPlan other =
        as_plan(outcome_of({"--warm", "torch", "--no-python", "/usr/bin/true"}));
    CHECK(other.agent.warm.modules.empty());
    CHECK(other.warnings.back().find("has no effect") != std::string::npos);
}

TEST_CASE("standbys learn what to import where workers may start again") {
    CHECK_FALSE(plan_of("").agent.warm.learns);
    CHECK(plan_of("--max-restarts 1").agent.warm.learns);
    CHECK(plan_of("--max-restarts 1").agent.warm.needs_room);
    CHECK(plan_of("--nnodes 1:2 --rdzv-endpoint head:29400").agent.warm.learns);
    CHECK_FALSE(plan_of("--warm off --max-restarts 1").agent.warm.learns);
    CHECK(plan_of("--warm on").agent.warm.learns);
    CHECK(plan_of("--warm on").agent.warm.modules.empty());
    CHECK_FALSE(plan_of("--warm auto --max-restarts 0").agent.warm.learns);
    CHECK(plan_of("--warm auto --max-restarts 1").agent.warm.learns);
    const LaunchPlan other = as_plan(
        outcome_of({"--warm", "auto", "--max-restarts", "1", "--no-python", "/usr/bin/true"}));
    CHECK(other.agent.warm.learns);
    CHECK(other.agent.warm.program == "true");
    CHECK(other.warnings.empty());
    CHECK(plan_of("--warm on").agent.warm.program.empty());
}

TEST_CASE("a prepare command is one text for the shell, for each node or once for the job") {
    CHECK(plan_of("").agent.prepare_command.empty());
    const auto prepare_of = [](const std::string& text) {
        return as_plan(outcome_of({"--prepare", text, "train.py"}));
    };
    CHECK(prepare_of("make data; ls").agent.prepare_command == "make data; ls");
    CHECK(prepare_of("make data; ls").identity().prepares == rdzv::Prepares::Node);
    CHECK(prepare_of("job:make data").agent.prepare_command == "make data");
    CHECK(prepare_of("job:make data").identity().prepares == rdzv::Prepares::Job);
    CHECK(plan_of("", {{"PET_PREPARE", "job:make"}}).identity().prepares == rdzv::Prepares::Job);
    CHECK(prepare_of("").agent.prepare_command.empty());
    CHECK(as_error(outcome_of({"--prepare", "job: ", "train.py"}))
              .line.starts_with("--prepare job: : there is no command; write it for the shell"));
}

TEST_CASE("--ifname takes an interface that is there, up and has an address, or finds one") {
    CHECK_FALSE(plan_of("").agent.supervisor.interface);
    const LaunchPlan named = plan_of("--ifname eth0");
    CHECK(named.agent.supervisor.interface == agent::InterfaceChoice{.name = "eth0"});
    CHECK(named.notes == plan_of("").notes);
    CHECK(plan_of("--ifname auto").agent.supervisor.interface ==
          agent::InterfaceChoice{.follows_link = true});
    CHECK(refusal_of("--ifname eth9") ==
          "--ifname eth9: this machine has no such interface; those that are up: lo (127.0.0.1), "
          "eth0 (10.0.0.7), eth01 (10.1.0.7); or let it be chosen, --ifname auto");
    CHECK(refusal_of("--ifname eth1").starts_with("--ifname eth1: it is down; "));
    CHECK(refusal_of("--ifname ib0").starts_with("--ifname ib0: it has no IP address; "));
}

TEST_CASE("--ifname never writes over what the user has set, and says so") {
    const LaunchPlan plan = plan_of("--ifname auto", {{"NCCL_SOCKET_IFNAME", "^docker0"}});
    CHECK_FALSE(plan.agent.supervisor.interface->sets_nccl);
    CHECK(plan.agent.supervisor.interface->sets_gloo);
    CHECK(plan.notes.back() ==
          "--ifname auto: NCCL_SOCKET_IFNAME is set already, to ^docker0, and stays");
}

TEST_CASE("a preflight command is one text for the shell, and has its time") {
    CHECK(plan_of("").agent.preflight_command.empty());
    const LaunchPlan plan =
        as_plan(outcome_of({"--preflight-command", "nvidia-smi -L | grep -c GPU",
                            "--preflight-timeout", "2.5", "train.py"}));
    CHECK(plan.agent.preflight_command == "nvidia-smi -L | grep -c GPU");
    CHECK(plan.agent.preflight_timeout == Milliseconds(2500));
    CHECK(refusal_of("--preflight-timeout soon")
              .starts_with("--preflight-timeout soon: must be seconds, at least 0.001"));
}

TEST_CASE("console lines are text or JSON") {
    CHECK_FALSE(plan_of("").agent.output.is_json);
    CHECK_FALSE(plan_of("--log-format text").agent.output.is_json);
    CHECK(plan_of("--log-format json").agent.output.is_json);
    CHECK(plan_of("", {{"PET_LOG_FORMAT", "json"}}).agent.output.is_json);
    CHECK(refusal_of("--log-format xml") == "--log-format xml: must be text or json");
}

TEST_CASE("full log files have a size and a number") {
    CHECK(plan_of("").agent.output.rotation.file_bytes_max == 0);
    CHECK(plan_of("").agent.output.rotation.kept_max == 0);
    const auto bytes = [](const std::string& size) {
        return plan_of("--log-file-size " + size).agent.output.rotation.file_bytes_max;
    };
    CHECK(bytes("65536") == 65536);
    CHECK(bytes("64K") == 65536);
    CHECK(bytes("3M") == std::uint64_t{3} << 20);
    CHECK(bytes("2GB") == std::uint64_t{2} << 30);
    CHECK(bytes("1TiB") == std::uint64_t{1} << 40);
    for (const std::string size : {"0", "65535", "63K", "-1", "M", "1.5G", "64k", "64KX", "64KiBs",
                                   "64B", "9999999T", "99999999999999999999"}) {
        CHECK(refusal_of("--log-file-size " + size) ==
              "--log-file-size " + size +
                  ": must be a number of bytes, at least 65536, such as 64M or 2G");
    }
    const LaunchPlan plan = plan_of("--log-file-size 1M --log-files-kept 3");
    CHECK(plan.agent.output.rotation.kept_max == 3);
    CHECK(plan.warnings.empty());
    CHECK(plan_of("--log-files-kept 3").warnings ==
          Arguments{"--log-files-kept 3 has no effect: without --log-file-size no log file is ever "
                    "full"});
    CHECK(refusal_of("--log-files-kept 0") ==
          "--log-files-kept 0: must be a whole number from 1 to 1000000");
}

TEST_CASE("--debug-rank is a rank of the job, at a terminal") {
    const auto at_terminal = [](const std::string& flags) {
        FakeSurroundings surroundings;
        surroundings.has_terminal = true;
        return make_plan(words(flags + " train.py"), surroundings);
    };
    const LaunchPlan plan = as_plan(at_terminal("--nproc-per-node 2 --debug-rank 1"));
    CHECK(plan.agent.supervisor.debugging->rank == Rank(1));
    CHECK(plan.agent.supervisor.debugging->is_asked);
    CHECK(as_error(at_terminal("--nproc-per-node 2 --debug-rank 2")).line ==
          "--debug-rank 2: the job has no such rank, only 0 to 1; raise --nproc-per-node, or name "
          "one of these");
    CHECK(as_error(at_terminal("--debug-rank last")).line.find("must be a whole number from 0") !=
          std::string::npos);
    CHECK(as_error(at_terminal("--debug-rank 0 --log-format json")).line ==
          "--debug-rank 0: what is typed and shown at a terminal is no JSON; leave this out, or "
          "--log-format json");
    CHECK(refusal_of("--debug-rank 0") ==
          "--debug-rank 0: stdin and stdout of ddprun must be a terminal; start it at one, without "
          "redirections or pipes (over ssh: ssh -t)");
    CHECK(plan_of("--debug-rank 0 --dry-run").agent.supervisor.debugging->rank == Rank(0));
    const LaunchPlan several =
        plan_of("--nnodes 2 --rdzv-id a --rdzv-endpoint head:1 --debug-rank 7");
    CHECK(several.agent.supervisor.debugging->rank == Rank(7));
    CHECK_FALSE(plan_of("", {{"PET_DEBUG_RANK", ""}}).agent.supervisor.debugging.has_value());
}

TEST_CASE("a single worker at a terminal has it anyway, unless its output goes elsewhere") {
    FakeSurroundings surroundings;
    const auto has_it = [&surroundings](const std::string& flags) {
        const LaunchPlan plan = as_plan(make_plan(words(flags + " train.py"), surroundings));
        const std::optional<agent::Debugging>& debugging = plan.agent.supervisor.debugging;
        CHECK_FALSE((debugging && debugging->is_asked));
        return debugging && debugging->rank == Rank(0);
    };
    CHECK_FALSE(has_it(""));
    surroundings.has_terminal = true;
    CHECK(has_it(""));
    CHECK(has_it("--local-ranks-filter 0,1 --ranks-filter last"));
    for (const char* flags : {"--nproc-per-node 2", "--tee 1", "--redirects 3", "--log-format json",
                              "--prefix always", "--local-ranks-filter 1", "--ranks-filter 1",
                              "--nnodes 1:2 --rdzv-id a --rdzv-endpoint head:1"}) {
        CAPTURE(flags);
        CHECK_FALSE(has_it(flags));
    }
    const LaunchPlan watched =
        as_plan(make_plan(words("--hang-timeout 60 train.py"), surroundings));
    REQUIRE(watched.warnings.size() == 1);
    CHECK(watched.warnings[0] ==
          "--hang-timeout 60 has no effect: the worker has this terminal, and may wait for what is "
          "typed; with </dev/null it is looked for");
    CHECK(as_plan(make_plan(words("--hang-timeout 0 train.py"), surroundings)).warnings.empty());
}

TEST_CASE("the prefix is one of three") {
    CHECK(plan_of("").prefix == PrefixMode::Auto);
    CHECK(plan_of("--prefix auto").prefix == PrefixMode::Auto);
    CHECK(plan_of("--prefix always").prefix == PrefixMode::Always);
    CHECK(plan_of("--prefix never").prefix == PrefixMode::Never);
}

TEST_CASE("the template of tee'd lines is the flag's, else the variable's that torchrun has") {
    const Variables set = {{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "<$rank>"}};
    CHECK(plan_of("").agent.output.prefix_template.empty());
    CHECK(plan_of("", set).agent.output.prefix_template == "<$rank>");
    CHECK(plan_of("--log-line-prefix-template ${hostname}:", set).agent.output.prefix_template ==
          "${hostname}:");
}

TEST_CASE("--help-all fits a terminal's width and names every flag") {
    const std::string help = shown_help_all();
    CHECK(lines_that_fit(help) <= 155);
    for (const Flag& flag : all_flags()) {
        CAPTURE(flag.name);
        CHECK(names_flag(help, flag) == (flag.group != FlagGroup::Hidden));
        CHECK(flag.help.empty() == (flag.group == FlagGroup::Hidden));
    }
}

TEST_CASE("--help is a screen and a half: how to call ddprun, and the flags that most jobs need") {
    const std::string help = shown_help();
    CHECK(lines_that_fit(help) <= 60);
    CHECK(help.starts_with("usage: ddprun [flags] PROGRAM [its arguments ...]\n"));
    CHECK(help.find("--help-all has every flag") != std::string::npos);
    int common = 0;
    for (const Flag& flag : all_flags()) {
        CAPTURE(flag.name);
        CHECK(names_flag(help, flag) == flag.is_common);
        common += flag.is_common ? 1 : 0;
    }
    CHECK(common >= 15);
    CHECK(common <= 22);
}

TEST_CASE("--help-all has every exit code") {
    const std::string help = shown_help_all();
    const std::string codes = help.substr(help.find("\nexit codes"));
    for (const int code : {kExitSuccess, kExitUsage, kExitRendezvousLost, kExitNodesMissing,
                           kExitDrained, kExitNoProgress, kExitHung, kExitUnkillable, kExitUnfit,
                           kExitInternal, kExitNotExecutable, kExitNotFound, kExitSignalBase}) {
        CAPTURE(code);
        CHECK_THAT(codes.substr(0, codes.find("environment:")),
                   Catch::Matches("(.|\n)*[ ,]" + std::to_string(code) + "[ ,](.|\n)*"));
    }
}

TEST_CASE("--help, --help-all and --version answer before anything else is judged") {
    for (const Arguments& arguments :
         {Arguments{"-h"}, Arguments{"--help", "--bogus"}, Arguments{"--nnodes", "3:1", "--help"},
          Arguments{"-mh"}, Arguments{"--bogus", "--help"}, Arguments{"--help", "nope"}}) {
        CHECK(std::get<ShowText>(outcome_of(arguments)).text == shown_help());
    }
    for (const Arguments& arguments :
         {Arguments{"--help_all"}, Arguments{"--help-all", "--bogus"},
          Arguments{"--bogus", "--help-all"}, Arguments{"--help", "--help-all"}}) {
        CHECK(std::get<ShowText>(outcome_of(arguments)).text == shown_help_all());
    }
    const std::string version = std::get<ShowText>(outcome_of({"--version"})).text;
    CHECK_THAT(version, Catch::Matches("ddprun [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

TEST_CASE("the real surroundings are this process's") {
    const auto own = real_surroundings();
    const Surroundings& here = *own;
    CHECK(here.exists("/"));
    CHECK(here.is_directory("/"));
    CHECK_FALSE(here.is_executable_file("/"));
    CHECK(here.is_executable_file("/bin/sh"));
    CHECK_FALSE(here.exists("/no/such/file"));
    CHECK_FALSE(here.allowed_cpus().empty());
    CHECK(here.working_directory().front() == '/');
    CHECK_FALSE(here.variable("DDPRUN_TEST_NEVER_SET").has_value());
    CHECK(here.variable("PATH").has_value());
    CHECK(here.read_file("/proc/self/comm").value_or("") == "plan_unit\n");
    CHECK_FALSE(here.read_file("/no/such/file").has_value());
    CHECK_FALSE(here.names_in("/proc/self/fd").empty());
    CHECK(here.names_in("/no/such/folder").empty());
}
