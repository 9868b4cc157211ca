// Workers that hang, and workers that only seem to.

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/cluster/nodes.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun::test;

namespace {

constexpr const char* kQuiet = "no sign of life for [0-9]+ s: no output";
constexpr const char* kSaved = "generation [0-9]+ hung: .* stacks are saved in /";

/// In a folder, PATH's if no other is said, `program` is a script that does `command`.
void fake_tool(Cluster& cluster, const std::string& program, const std::string& command,
               const std::string& where = "tools") {
    const std::string folder = cluster.dir() / where;
    std::filesystem::create_directories(folder);
    write_file(folder + "/" + program, "#!/bin/sh\n" + command + "\n");
    REQUIRE(::chmod((folder + "/" + program).c_str(), 0755) == 0);
}

std::map<std::string, std::string> only_tools(Cluster& cluster) {
    std::filesystem::create_directories(cluster.dir() / "tools");
    return {{"PATH", cluster.dir() / "tools"}};
}

/// The folders in which this node says that stacks are, in order.
std::vector<std::string> stacks_folders(const Process& node) {
    const std::string before = "stacks are saved in ";
    std::vector<std::string> folders;
    const std::string text = node.text();
    for (std::size_t at = text.find(before); at != std::string::npos; at = text.find(before, at)) {
        at += before.size();
        folders.push_back(text.substr(at, text.find('\n', at) - at));
    }
    return folders;
}

void check_has(const std::string& text, const std::vector<std::string>& parts) {
    CAPTURE(text);
    for (const std::string& part : parts) {
        CAPTURE(part);
        CHECK(text.find(part) != std::string::npos);
    }
}

}  // namespace

TEST_CASE(
    "a generation that hangs is restarted with its stacks saved, at last the run ends with 94") {
    Cluster cluster;
    const FreePort port;
    fake_tool(cluster, "eu-stack", "echo shown by eu-stack $*");
    Job job;
    job.slots = 2;
    job.endpoint = port.endpoint();
    job.flags = {"--hang-timeout", "1", "--max-restarts", "1"};
    job.script = {"--print", "--thread", "loader", "--child", "--hang"};
    std::vector<Process*> nodes;
    for (const char* rank : {"0", "1"}) {
        nodes.push_back(
            &cluster.start_ddprun(node_args(job, {"--node-rank", rank}), only_tools(cluster)));
    }
    for (std::size_t i = 0; i < nodes.size(); ++i) {
        Process& node = *nodes[i];
        CHECK(node.wait_exit() == 94);
        CHECK(node.count_lines("^worker .* restarts=0 ") == 2);
        CHECK(node.count_lines("^worker .* restarts=1 ") == 2);
        CHECK(node.count_lines(kSaved) == 2);
        CHECK(node.count_lines("^[^ ]+ failed: rank [0-3] on .* hung: no sign of life for") == 1);
        CHECK(node.count_lines("^  stacks     /") == 1);
        const std::vector<std::string> folders = stacks_folders(node);
        REQUIRE(folders.size() == 2);
        for (const std::string& folder : folders) {
            CAPTURE(folder);
            const std::vector<std::string> names =
                i == 0 ? std::vector<std::string>{"rank0.txt", "rank1.txt"}
                       : std::vector<std::string>{"rank2.txt", "rank3.txt"};
            REQUIRE(list_folder(folder) == names);
            for (const std::string& name : names) {
                const std::string text = read_file(folder + "/" + name);
                check_has(text,
                          {name.substr(4, 1) + ", process ", " ddprun_test_wor, state S",
                           " loader, state S, waits in ", "system call ", "shown by eu-stack -p "});
                const std::size_t worker = text.find("\nprocess ");
                CHECK(text.find("\nprocess ", worker + 1) != std::string::npos);  // its child
            }
        }
    }
    cluster.wait_all_gone();
}

TEST_CASE("a node whose workers wait for a busy one of another node does not hang") {
    const std::string containment = GENERATE("", "keeper");
    Cluster cluster;
    const FreePort port;
    Job job;
    job.endpoint = port.endpoint();
    job.flags = {"--hang-timeout", "1"};
    if (!containment.empty()) {
        job.flags.insert(job.flags.end(), {"--containment", containment});
    }
    const std::string go = cluster.dir() / "go";
    job.script = {"--print",  "--when-rank",     "1", "--burn-until", go,
                  "--always", "--wait-for-file", go};
    Process& waits = start_node(cluster, job, {"--node-rank", "0"});
    Process& works = start_node(cluster, job, {"--node-rank", "1"});
    waits.wait_for_line(kQuiet);
    touch(go);
    for (Process* node : {&waits, &works}) {
        CHECK(node->wait_exit() == 0);
        CHECK(node->count_lines("^worker ") == 1);
        CHECK(node->count_lines("hung") == 0);
    }
    CHECK(works.count_lines(kQuiet) == 0);
    cluster.wait_all_gone();
}

TEST_CASE(
    "a worker that shows nothing but steps, or nothing but output, does not hang until it ends") {
    const std::string sign = GENERATE("--progress", "--say");
    Cluster cluster;
    std::vector<std::string> args = {"--hang-timeout", "1", Cluster::worker(), "--attach-page"};
    // Twice the timeout altogether.
    constexpr int kSigns = 8;
    for (int i = 1; i <= kSigns; ++i) {
        args.insert(args.end(), {"--pause", "300", sign, std::to_string(i)});
    }
    args.push_back("--hang");
    Process& node = cluster.start_ddprun(args, only_tools(cluster));
    CHECK(node.wait_exit() == 94);
    if (sign == "--say") {
        CHECK(node.count_lines("^8$") == 1);
    } else {
        CHECK(node.count_lines("^  last step  8$") == 1);
    }
    cluster.wait_all_gone();
}

/// Returns the stacks of the one worker of a node that runs `python` and was found to hang.
std::string stacks_of_hung(Cluster& cluster, const std::string& python) {
    std::filesystem::copy_file(Cluster::worker(), python);
    Process& node = cluster.start_ddprun(
        {"--hang-timeout", "1", "--no-python", python, "--print", "--hang"}, only_tools(cluster));
    CHECK(node.wait_exit() == 94);
    CHECK(node.count_lines("no py-spy") == 0);
    const std::vector<std::string> folders = stacks_folders(node);
    REQUIRE(folders.size() == 1);
    return read_file(folders[0] + "/rank0.txt");
}

TEST_CASE("Python's stacks are shown by py-spy, and a tool that does not end is killed") {
    Cluster cluster;
    fake_tool(cluster, "py-spy", "echo shown by py-spy $*");
    fake_tool(cluster, "eu-stack", "echo begun; exec /bin/sleep 1000");
    const std::string text = stacks_of_hung(cluster, cluster.dir() / "python3");
    check_has(text, {"Python's stacks, by py-spy", "shown by py-spy dump ", "begun\n",
                     "(it did not end in time and was killed)"});
    // The kernel's facts come first, whatever the tools do.
    CHECK(text.find("state S") < text.find("py-spy"));
    cluster.wait_all_gone();
}

TEST_CASE("py-spy is sought beside the Python that runs, and then in PATH") {
    Cluster cluster;
    fake_tool(cluster, "py-spy", "echo the wrong one");
    fake_tool(cluster, "py-spy", "echo shown by its own py-spy $*", "env/bin");
    const std::string text = stacks_of_hung(cluster, cluster.dir() / "env/bin/python3");
    check_has(text, {"shown by its own py-spy dump "});
    CHECK(text.find("the wrong one") == std::string::npos);
    cluster.wait_all_gone();
}

TEST_CASE("a Python that hangs without py-spy is told on the console how to get it") {
    Cluster cluster;
    const std::string python = cluster.dir() / "python3";
    std::filesystem::copy_file(Cluster::worker(), python);
    Process& node = cluster.start_ddprun({"--hang-timeout", "1", "--nproc-per-node", "2",
                                          "--no-python", python, "--print", "--hang"},
                                         only_tools(cluster));
    CHECK(node.wait_exit() == 94);
    CHECK(node.count_lines("no py-spy beside " + python + " nor in PATH; get it with: " + python +
                           " -m pip install py-spy$") == 1);
    CHECK(node.count_lines("^  python     " + python + "$") == 1);
    cluster.wait_all_gone();
}

TEST_CASE("where nothing is installed the file says what is missing") {
    Cluster cluster;
    Process& node = cluster.start_ddprun({"--hang-timeout", "1", Cluster::worker(), "--hang"},
                                         only_tools(cluster));
    CHECK(node.wait_exit() == 94);
    CHECK(node.count_lines("py-spy") == 0);  // it is no Python
    const std::vector<std::string> folders = stacks_folders(node);
    REQUIRE(folders.size() == 1);
    check_has(read_file(folders[0] + "/rank0.txt"),
              {"neither eu-stack nor gdb is installed on this node", "state S"});
    cluster.wait_all_gone();
}

TEST_CASE("a flight recorder that is on is asked, and its record is kept beside the stacks") {
    const bool is_told_where = GENERATE(true, false);
    CAPTURE(is_told_where);
    Cluster cluster;
    // As a debugger does.
    fake_tool(cluster, "eu-stack", "kill -STOP $2; exec /bin/sleep 1000");
    std::map<std::string, std::string> env = only_tools(cluster);
    env["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] = cluster.dir() / "ask";
    if (is_told_where) {
        env["TORCH_FR_DUMP_TEMP_FILE"] = cluster.dir() / "record_";
    }
    Process& node =
        cluster.start_ddprun({"--nproc-per-node", "2", "--hang-timeout", "1", Cluster::worker(),
                              "--flight-recorder", "70000", "--hang"},
                             env);
    CHECK(node.wait_exit() == 94);
    const std::vector<std::string> folders = stacks_folders(node);
    REQUIRE(folders.size() == 1);
    for (const std::string rank : {"0", "1"}) {
        const std::string record = read_file(folders[0] + "/nccl_trace_rank_" + rank);
        CHECK(record == std::string(69999, 'r') + "\n");
        const std::string text = read_file(folders[0] + "/rank" + rank + ".txt");
        check_has(text, {"flight recorder\nsaved as nccl_trace_rank_" + rank});
        // A hanging worker may lock the memory that holds its environment.
        CHECK(text.find("state S") < text.find("flight recorder"));
    }
    cluster.wait_all_gone();
}

TEST_CASE("a flight recorder that does not answer, is not there, or is no pipe holds up nothing") {
    const std::string what = GENERATE(as<std::string>{}, "silent", "too long", "none", "no reader",
                                      "no pipe", "no folder");
    CAPTURE(what);
    Cluster cluster;
    std::map<std::string, std::string> env = only_tools(cluster);
    env["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] = cluster.dir() / "ask";
    env["TORCH_FR_DUMP_TEMP_FILE"] = cluster.dir() / (what == "no folder" ? "none/r" : "r");
    std::vector<std::string> args = {"--hang-timeout", "1", Cluster::worker()};
    std::string said;
    if (what == "silent") {
        args.insert(args.end(), {"--flight-recorder", "0"});
        said = "it was asked and did not write";
    } else if (what == "too long") {
        args.insert(args.end(), {"--flight-recorder", "16777217"});
        said = "has 16777217 bytes, more than the 16777216 that are kept";
    } else if (what == "none") {
        said = "cannot open ";
    } else if (what == "no reader") {
        REQUIRE(::mkfifo((cluster.dir() / "ask0.pipe").c_str(), 0600) == 0);
        said = "nobody reads ";
    } else if (what == "no pipe") {
        write_file(cluster.dir() / "ask0.pipe", "mine\n");
        said = "is no pipe";
    } else {
        said = "cannot be watched";
    }
    args.push_back("--hang");
    Process& node = cluster.start_ddprun(args, env);
    CHECK(node.wait_exit() == 94);
    const std::vector<std::string> folders = stacks_folders(node);
    REQUIRE(folders.size() == 1);
    CHECK(list_folder(folders[0]) == std::vector<std::string>{"rank0.txt"});
    check_has(read_file(folders[0] + "/rank0.txt"),
              {"--- NCCL's flight recorder\n", said, "state S"});
    if (what == "no pipe") {
        CHECK(read_file(cluster.dir() / "ask0.pipe") == "mine\n");
    }
    cluster.wait_all_gone();
}

TEST_CASE("workers that sleep while their GPU computes do not hang") {
    Cluster cluster;
    const std::string use = cluster.dir() / "use";
    // They end once ddprun has checked their GPU three times. ddprun makes $$ of $$$$.
    Process& node =
        cluster.start_ddprun({"--hang-timeout", "1", "--no-python", "/bin/sh", "-c",
                              "echo process 0 $$$$ 40 0 > " + use + "; exec \"$@\"", "sh",
                              Cluster::worker(), "--wait-for-file", use + ".asked3"},
                             {{"LD_LIBRARY_PATH", DDPRUN_FAKE_NVML}, {"DDPRUN_FAKE_GPU_USE", use}});
    CHECK(node.wait_exit() == 0);
    CHECK(node.count_lines("hung") == 0);
    cluster.wait_all_gone();
}

TEST_CASE("a GPU that only spins, and a driver that never answers, hide no hang") {
    const std::string what = GENERATE(as<std::string>{}, "process 0 $$$$ 0 0", "block");
    CAPTURE(what);
    Cluster cluster;
    const std::string use = cluster.dir() / "use";
    Process& node = cluster.start_ddprun(
        {"--hang-timeout", "1", "--log-dir", "/dev/null", "--no-python", "/bin/sh", "-c",
         "echo " + what + " > " + use + "; exec \"$@\"", "sh", Cluster::worker(), "--hang"},
        {{"LD_LIBRARY_PATH", DDPRUN_FAKE_NVML}, {"DDPRUN_FAKE_GPU_USE", use}});
    CHECK(node.wait_exit() == 94);
    CHECK_FALSE(read_file(use).empty());
    CHECK(std::filesystem::exists(use + ".asked1"));
    cluster.wait_all_gone();
}

TEST_CASE("without log files a hang is ended all the same") {
    Cluster cluster;
    Process& node = cluster.start_ddprun(
        {"--hang-timeout", "1", "--log-dir", "/dev/null", Cluster::worker(), "--hang"});
    CHECK(node.wait_exit() == 94);
    CHECK(node.count_lines("without a log dir stacks are not saved") == 1);
    cluster.wait_all_gone();
}
