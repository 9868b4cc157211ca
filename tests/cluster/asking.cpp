// A user asks a job on this machine for stacks, a bundle, lines of logs.

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun;
using namespace ddprun::test;

namespace {

/// Other jobs run on this machine, other tests' among them.
const std::string kJob = fmt::format("asked{}", ::getpid());

using Variables = std::map<std::string, std::string>;

Process& start_ctl(Cluster& cluster, std::vector<std::string> args,
                   const Variables& variables = {}) {
    args.insert(args.begin(), Cluster::program("ddpctl"));
    args.insert(args.end(), {"--log-dir", cluster.dir() / "logs"});
    return cluster.start({.argv = args, .env = variables, .cwd = {}, .name = "ddpctl"});
}

/// The one run of the test.
std::string run_folder(const Cluster& cluster) {
    for (const std::string& name : list_folder(cluster.dir() / "logs")) {
        if (name != "latest") {
            return cluster.dir() / "logs/" + name;
        }
    }
    return {};
}

void wait_for_answers(Cluster& cluster) {
    cluster.wait_until("the run answers", [&] {
        return ::access((run_folder(cluster) + "/ddprun.sock").c_str(), F_OK) == 0;
    });
}

/// A py-spy that sees rank 2 elsewhere than the others; `env` of its caller is not the worker's.
Variables with_py_spy(const Cluster& cluster) {
    const std::string folder = cluster.dir() / "tools";
    std::filesystem::create_directories(folder);
    write_file(folder + "/py-spy",
               "#!/bin/sh\n"
               "for last; do :; done\n"
               "line=42\n"
               "/bin/grep -qz ^RANK=2$ /proc/$last/environ && line=57\n"
               "echo \"Process $last: python3\"; echo\n"
               "echo \"Thread $last (idle): \\\"MainThread\\\"\"\n"
               "echo \"    all_reduce (train.py:$line)\"\n");
    REQUIRE(::chmod((folder + "/py-spy").c_str(), 0755) == 0);
    return {{"PATH", folder}};
}

}  // namespace

TEST_CASE("the stacks of a running job are shown merged, and it goes on") {
    Cluster cluster;
    const std::string python = cluster.dir() / "python3";
    const std::string end = cluster.dir() / "end";
    std::filesystem::copy_file(Cluster::worker(), python);
    Process& node = cluster.start_ddprun({"--rdzv-id", kJob, "--nproc-per-node", "4", "--no-python",
                                          python, "--say", "here", "--wait-for-file", end});
    node.wait_for_lines("here$", 4);
    wait_for_answers(cluster);

    Process& merged = start_ctl(cluster, {"stacks", kJob}, with_py_spy(cluster));
    CHECK(merged.wait_exit() == 0);
    const std::string text = merged.out();
    CHECK(text.find("=== 3 ranks (0-1,3): Python's stacks, by py-spy, as of 0\n") == 0);
    CHECK(text.find("\n\n=== 1 rank (2): Python's stacks, by py-spy\n") != std::string::npos);
    CHECK(merged.count_lines("all_reduce \\(train.py:42\\)") == 1);
    CHECK(merged.count_lines("all_reduce \\(train.py:57\\)") == 1);

    Process& one = start_ctl(cluster, {"stacks", kJob, "--rank", "2"}, with_py_spy(cluster));
    CHECK(one.wait_exit() == 0);
    CHECK(one.count_lines("^rank [0-9]+, process ") == 1);
    CHECK(one.count_lines("^rank 2, process ") == 1);
    CHECK(one.count_lines("^    system call ") >= 1);
    CHECK(one.count_lines("train.py:57") == 1);

    Process& other = start_ctl(cluster, {"stacks", kJob, "--rank", "9"});
    CHECK(other.wait_exit() == 1);
    CHECK(other.count_lines("rank 9 does not run here; those that do: 0-3$") == 1);

    for (const std::string& left : list_folder(cluster.dir() / "tmp")) {
        CHECK_FALSE(left.starts_with("ddprun-stacks"));
    }
    touch(end);
    CHECK(node.wait_exit() == 0);
    cluster.wait_all_gone();
}

TEST_CASE("without tools the stacks are what the kernel says, and how to get more") {
    Cluster cluster;
    const std::string python = cluster.dir() / "python3";
    const std::string end = cluster.dir() / "end";
    std::filesystem::copy_file(Cluster::worker(), python);
    Process& node = cluster.start_ddprun({"--rdzv-id", kJob, "--nproc-per-node", "2", "--no-python",
                                          python, "--say", "here", "--wait-for-file", end});
    node.wait_for_lines("here$", 2);
    wait_for_answers(cluster);
    std::filesystem::create_directories(cluster.dir() / "tools");
    Process& shown = start_ctl(cluster, {"stacks", kJob}, {{"PATH", cluster.dir() / "tools"}});
    CHECK(shown.wait_exit() == 0);
    CHECK(shown.count_lines("what the kernel says of their threads") >= 1);
    CHECK(shown.count_lines("^    system call ") >= 1);
    CHECK(shown.count_lines("no py-spy beside " + python + " nor in PATH") == 1);
    touch(end);
    CHECK(node.wait_exit() == 0);
    cluster.wait_all_gone();
}

TEST_CASE("a bundle has what helps, as its schema says, and no secret") {
    Cluster cluster;
    const std::string end = cluster.dir() / "end";
    const std::string file = cluster.dir() / "bundle.json";
    const FreePort port;
    Process& node = cluster.start_ddprun(
        {"--rdzv-id", kJob, "--nnodes", "1:2", "--rdzv-endpoint", port.endpoint(), "--rdzv-conf",
         "last_call_timeout=0", "--max-restarts", "1", "--nproc-per-node", "2", "--no-python",
         "/bin/sh", "-c",
         "echo said by $RANK; [ $DDPRUN_GENERATION = 1 ] && [ $RANK = 1 ] && exit 3; "
         "while [ ! -e " +
             end + " ]; do /bin/sleep 0.02; done",
         "key-in-an-argument"},
        {{"API_TOKEN", "value-of-a-variable"}});
    node.wait_for_line("generation 2: ");
    node.wait_for_lines("^said by [01]$", 3);
    wait_for_answers(cluster);
    const std::string secret = read_file(cluster.dir() / "home/.config/ddprun/secret");
    REQUIRE(secret.size() > 16);
    const auto parsed = nlohmann::json::parse(read_file(DDPRUN_BUNDLE_SCHEMA));
    for (const bool is_over : {false, true}) {
        CAPTURE(is_over);
        if (is_over) {
            touch(end);
            CHECK(node.wait_exit() == 0);
        }
        Process& packed = start_ctl(cluster, {"report", run_folder(cluster), "--bundle", file});
        CHECK(packed.wait_exit() == 0);
        struct stat status {};
        REQUIRE(::stat(file.c_str(), &status) == 0);
        CHECK((status.st_mode & 07777U) == 0600U);
        const std::string text = read_file(file);
        const nlohmann::json bundle = nlohmann::json::parse(text);
        for (const std::string& hidden :
             {std::string("value-of-a-variable"), std::string("key-in-an-argument"),
              secret.substr(0, secret.find('\n'))}) {
            CHECK(text.find(hidden) == std::string::npos);
        }
        for (const auto& required : parsed["required"]) {
            CHECK(bundle.contains(required.get<std::string>()));
        }
        CHECK(parsed["required"].size() == bundle.size());
        for (const auto& [name, value] : bundle.items()) {
            CAPTURE(name);
            REQUIRE(parsed["properties"].contains(name));
            const nlohmann::json types = parsed["properties"][name]["type"];
            const std::string type = value.is_number() ? "integer" : value.type_name();
            CHECK((types == type || std::find(types.begin(), types.end(), type) != types.end()));
        }
        CHECK(bundle["status"].is_null() == is_over);
        CHECK(bundle["report"].is_null() != is_over);
        CHECK(bundle["stacks_now"].is_null() == is_over);
        CHECK(bundle["events"].size() > 10);
        CHECK(bundle["logs"].at(0)["generation"] == 2);
        CHECK(bundle["logs"].at(0)["end"] == "said by 0\n");
        CHECK(bundle["machine"]["checks"].size() > 5);
    }
    cluster.wait_all_gone();
}

TEST_CASE("of logs only the lines are shown that somebody looks for") {
    Cluster cluster;
    Process& node = cluster.start_ddprun(
        {"--rdzv-id", kJob, "--nproc-per-node", "2", "--no-python", "/bin/sh", "-c",
         "echo step 1 loss 2.5; echo rank $RANK step 2 loss nan; printf 'the end: inf'"});
    CHECK(node.wait_exit() == 0);
    Process& all = start_ctl(cluster, {"logs", "--grep", "nan|inf$"});
    CHECK(all.wait_exit() == 0);
    CHECK(all.count_lines("^\\[0\\] rank 0 step 2 loss nan$") == 1);
    CHECK(all.count_lines("^\\[1\\] rank 1 step 2 loss nan$") == 1);
    CHECK(all.count_lines("^\\[[01]\\] the end: inf$") == 2);
    CHECK(all.count_lines("") == 4);
    Process& one = start_ctl(cluster, {"logs", "--rank", "1", "--grep", "^rank .*nan"});
    CHECK(one.wait_exit() == 0);
    CHECK(one.out() == "rank 1 step 2 loss nan\n");
    Process& wrong = start_ctl(cluster, {"logs", "--grep", "a("});
    CHECK(wrong.wait_exit() == 2);
    CHECK(wrong.count_lines("^ddpctl: --grep a\\(: ") == 1);
    cluster.wait_all_gone();
}
