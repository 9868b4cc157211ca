// `ddpctl logs` beside jobs that run, fail and begin again; --log-file-size and --log-format.

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/cluster/nodes.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun::test;

namespace {

Process& start_ddpctl(Cluster& cluster, const std::string& verb, std::vector<std::string> args) {
    args.insert(args.begin(),
                {Cluster::program("ddpctl"), verb, "--log-dir", cluster.dir() / "logs"});
    return cluster.start({.argv = args, .env = {}, .cwd = {}, .name = "ddpctl"});
}

Process& start_logs(Cluster& cluster, std::vector<std::string> args) {
    return start_ddpctl(cluster, "logs", std::move(args));
}

/// The names of the runs in the log folder.
std::vector<std::string> runs_there(Cluster& cluster) {
    std::vector<std::string> names;
    for (const std::string& name : list_folder(cluster.dir() / "logs")) {
        if (name != "latest") {
            names.push_back(name);
        }
    }
    return names;
}

}  // namespace

TEST_CASE("logs of a run that is over: of all ranks in lines, of one as it wrote, or the last") {
    Cluster cluster;
    Process& node = cluster.start_ddprun({"--nproc-per-node",
                                          "2",
                                          "--rdzv-id",
                                          "job-1",
                                          Cluster::worker(),
                                          "--when-rank",
                                          "0",
                                          "--say",
                                          "zero",
                                          "--say",
                                          "nought",
                                          "--write",
                                          "no end",
                                          "--always",
                                          "--when-rank",
                                          "1",
                                          "--say",
                                          "one",
                                          "--complain",
                                          "sorry",
                                          "--always",
                                          "--exit-code",
                                          "0"});
    REQUIRE(node.wait_exit() == 0);
    Process& all = start_logs(cluster, {"--follow"});
    CHECK(all.wait_exit() == 0);
    CHECK(all.out() == "[0] zero\n[0] nought\n[1] one\n[0] no end\n");
    CHECK(all.err() == "[1] sorry\n");
    Process& alone = start_logs(cluster, {"--rank", "0", "--rdzv-id", "job-1"});
    CHECK(alone.wait_exit() == 0);
    CHECK(alone.out() == "zero\nnought\nno end");
    CHECK(alone.err().empty());
    Process& last = start_logs(cluster, {"--rank", "0", "-n", "2"});
    CHECK(last.wait_exit() == 0);
    CHECK(last.out() == "nought\nno end");
    Process& none = start_logs(cluster, {"--rank", "1", "-n", "0"});
    CHECK(none.wait_exit() == 0);
    CHECK(none.out().empty());
}

TEST_CASE("a job or rank that has no logs here is said by name, with exit code 1") {
    Cluster cluster;
    Process& nothing = start_logs(cluster, {});
    CHECK(nothing.wait_exit() == 1);
    CHECK(nothing.count_lines("logs has no logs of any run on this node; name the folder") == 1);
    REQUIRE(cluster.start_ddprun({Cluster::worker(), "--exit-code", "0"}).wait_exit() == 0);
    Process& job = start_logs(cluster, {"--rdzv-id", "other"});
    CHECK(job.wait_exit() == 1);
    CHECK(job.count_lines("has no logs of the job other on this node") == 1);
    Process& rank = start_logs(cluster, {"--rank", "0,7"});
    CHECK(rank.wait_exit() == 1);
    CHECK(rank.count_lines("has no rank 7 on this node, only 0") == 1);
    Process& wrong = start_logs(cluster, {"--rank", "x"});
    CHECK(wrong.wait_exit() == 2);
}

TEST_CASE("whoever follows sees what comes, the next generation too, and the end of the run") {
    Cluster cluster;
    const std::string fail = cluster.dir() / "fail";
    const std::string end = cluster.dir() / "end";
    Process& node = cluster.start_ddprun({"--max-restarts",
                                          "1",
                                          Cluster::worker(),
                                          "--before-generation",
                                          "2",
                                          "--say",
                                          "first",
                                          "--wait-for-file",
                                          fail,
                                          "--write",
                                          "last words",
                                          "--exit-code",
                                          "3",
                                          "--always",
                                          "--say",
                                          "second",
                                          "--wait-for-file",
                                          end,
                                          "--exit-code",
                                          "0"});
    node.wait_for_line("^first$");
    Process& following = start_logs(cluster, {"-f"});
    following.wait_for_line("^\\[0\\] first$");
    touch(fail);
    following.wait_for_line("^\\[0\\] second$");
    CHECK(following.is_running());
    touch(end);
    CHECK(node.wait_exit() == 0);
    CHECK(following.wait_exit() == 0);
    CHECK(following.out() == "[0] first\n[0] last words\n[0] second\n");
    cluster.wait_all_gone();
}

TEST_CASE("an earlier generation is shown by its number") {
    Cluster cluster;
    Process& node = cluster.start_ddprun({"--max-restarts",
                                          "1",
                                          "--nproc-per-node",
                                          "2",
                                          Cluster::worker(),
                                          "--before-generation",
                                          "2",
                                          "--say",
                                          "first",
                                          "--when-rank",
                                          "1",
                                          "--exit-code",
                                          "3",
                                          "--before-generation",
                                          "2",
                                          "--hang",
                                          "--always",
                                          "--say",
                                          "second",
                                          "--exit-code",
                                          "0"});
    REQUIRE(node.wait_exit() == 0);
    Process& newest = start_logs(cluster, {"--rank", "1"});
    CHECK(newest.wait_exit() == 0);
    CHECK(newest.out() == "second\n");
    Process& first = start_logs(cluster, {"--rank", "1", "--generation", "1"});
    CHECK(first.wait_exit() == 0);
    CHECK(first.out() == "first\n");
    Process& both = start_logs(cluster, {"--generation", "2"});
    CHECK(both.wait_exit() == 0);
    CHECK(both.out() == "[0] second\n[1] second\n");
    Process& none = start_logs(cluster, {"--generation", "3"});
    CHECK(none.wait_exit() == 1);
    CHECK(none.count_lines("has no generation 3 on this node, only 1, 2$") == 1);
    CHECK(start_logs(cluster, {"--generation", "0"}).wait_exit() == 2);
    CHECK(start_logs(cluster, {"--generation", "1", "--follow"}).wait_exit() == 2);
}

TEST_CASE("runs are listed, kept in number, and removed unless a ddprun writes them") {
    Cluster cluster;
    const auto run = [&](const std::string& job, const std::string& code,
                         const std::vector<std::string>& flags = {}) {
        std::vector<std::string> args = {"--rdzv-id", job};
        args.insert(args.end(), flags.begin(), flags.end());
        args.insert(args.end(), {Cluster::worker(), "--exit-code", code});
        REQUIRE(cluster.start_ddprun(args).wait_exit() == std::stoi(code));
    };
    run("one", "0");
    run("two", "3");
    Process& alive =
        cluster.start_ddprun({"--rdzv-id", "alive", Cluster::worker(), "--say", "on", "--hang"});
    alive.wait_for_line("^on$");
    Process& killed =
        cluster.start_ddprun({"--rdzv-id", "killed", Cluster::worker(), "--say", "on", "--hang"});
    killed.wait_for_line("^on$");
    killed.signal(SIGKILL);
    killed.wait_exit();
    Process& list = start_ddpctl(cluster, "runs", {});
    CHECK(list.wait_exit() == 0);
    const std::string time = "[0-9-]{10} [0-9:]{8} +";
    CHECK(list.count_lines("^RUN +PROGRAM +STARTED +ENDED +EXIT +WHY$") == 1);
    CHECK(list.count_lines("^one_[0-9a-f]{8} +ddprun_test_worker +" + time + time +
                           "0 +every rank exited 0$") == 1);
    CHECK(list.count_lines("^two_.* 3 +rank 0 on .* exited with code 3(: .*)?$") == 1);
    CHECK(list.count_lines("^alive_.* running +-$") == 1);
    CHECK(list.count_lines("^killed_.* killed +-$") == 1);
    Process& two = start_ddpctl(cluster, "runs", {"--rdzv-id", "two", "--json"});
    CHECK(two.wait_exit() == 0);
    const auto object = nlohmann::json::parse(two.out());
    CHECK(object["exit_code"] == 3);
    CHECK(object["state"] == "over");
    const std::string latest = std::filesystem::read_symlink(cluster.dir() / "logs/latest");
    CHECK(latest.starts_with("killed_"));
    Process& would = start_ddpctl(cluster, "clean", {"--keep", "1", "--dry-run"});
    CHECK(would.wait_exit() == 0);
    CHECK(would.count_lines("^would remove ") == 2);
    CHECK(runs_there(cluster).size() == 4);
    run("five", "0", {"--log-keep", "2"});
    std::vector<std::string> left = runs_there(cluster);
    REQUIRE(left.size() == 3);  // the newest before it, the one that runs, and itself
    CHECK(left[0].starts_with("alive_"));
    CHECK(left[1].starts_with("five_"));
    CHECK(left[2].starts_with("killed_"));
    Process& clean = start_ddpctl(cluster, "clean", {});
    CHECK(clean.wait_exit() == 0);
    CHECK(clean.count_lines("^removed .*/(five|killed)_") == 2);
    CHECK(clean.count_lines("^left .*/alive_[0-9a-f]{8}: its ddprun runs$") == 1);
    CHECK(runs_there(cluster).size() == 1);
    CHECK(alive.is_running());
    alive.signal(SIGTERM);
    alive.wait_exit();
    cluster.wait_all_gone();
}

TEST_CASE("following ends with a line that says why when ddprun is gone without a verdict") {
    Cluster cluster;
    Process& node =
        cluster.start_ddprun({"--rdzv-id", "job-1", Cluster::worker(), "--say", "begun", "--hang"});
    node.wait_for_line("^begun$");
    Process& following = start_logs(cluster, {"-f"});
    Process& beside = start_logs(cluster, {"-f", "--rank", "0"});
    following.wait_for_line("^\\[0\\] begun$");
    beside.wait_for_line("^begun$");
    node.signal(SIGKILL);
    const std::string why = "job-1_[0-9a-f]{8} ends here: .*ddprun .*without a verdict";
    for (Process* each : {&following, &beside, &start_logs(cluster, {"-f"})}) {
        CHECK(each->wait_exit() == 0);
        CHECK(each->count_lines("begun$") == 1);
        CHECK(each->count_lines(why) == 1);
    }
    Process& whole = start_logs(cluster, {});
    CHECK(whole.wait_exit() == 0);
    CHECK(whole.err().empty());
    cluster.wait_all_gone();
}

TEST_CASE("full logs are read as one, also while they are set aside") {
    Cluster cluster;
    const std::string go = cluster.dir() / "go";
    Process& node = cluster.start_ddprun({"--log-file-size", "64K", Cluster::worker(), "--say",
                                          "begin", "--wait-for-file", go, "--flood", "200000",
                                          "--say", "end", "--exit-code", "0"});
    node.wait_for_line("^begin$");
    Process& following = start_logs(cluster, {"--rank", "0", "-f"});
    following.wait_for_line("^begin$");
    touch(go);
    CHECK(node.wait_exit() == 0);
    CHECK(following.wait_exit() == 0);
    const std::string folder = cluster.dir() / "logs/" + runs_there(cluster)[0] + "/by-rank/0";
    std::string whole;
    int number = 1;
    for (;; ++number) {
        const std::string part = read_file(folder + "/stdout.log." + std::to_string(number));
        if (part.empty()) {
            break;
        }
        CHECK(part.size() <= 65536);
        whole += part;
    }
    whole += read_file(folder + "/stdout.log");
    CHECK(number > 2);
    CHECK((following.out() == whole));
    CHECK(following.count_lines("^end$") == 1);
    Process& afterwards = start_logs(cluster, {"--rank", "0"});
    CHECK(afterwards.wait_exit() == 0);
    CHECK((afterwards.out() == whole));
    cluster.wait_all_gone();
}

TEST_CASE("with --log-format json every line of the console is an object, ddprun's own too") {
    Cluster cluster;
    Process& node = cluster.start_ddprun({"--log-format", "json", Cluster::worker(), "--say",
                                          "hello", "--complain", "sorry", "--exit-code", "3"});
    CHECK(node.wait_exit() == 3);
    int of_worker = 0;
    int of_ddprun = 0;
    for (const std::string* text : {&node.out(), &node.err()}) {
        for (std::size_t at = 0; at < text->size();) {
            const std::size_t line_end = text->find('\n', at);
            REQUIRE(line_end != std::string::npos);
            const auto line = nlohmann::json::parse(text->substr(at, line_end - at));
            at = line_end + 1;
            of_worker += line["stream"] == "stdout" && line["message"] == "hello" ? 1 : 0;
            of_worker += line["stream"] == "stderr" && line["message"] == "sorry" ? 1 : 0;
            of_ddprun += line["stream"] == "ddprun" ? 1 : 0;
        }
    }
    CHECK(of_worker == 2);
    CHECK(of_ddprun >= 1);
    cluster.wait_all_gone();
}

TEST_CASE(
    "a default log folder that others can write to is refused, and nothing is written there") {
    Cluster cluster;
    const std::string tmp = cluster.dir() / "tmp";
    const std::string logs = tmp + "/ddprun-" + std::to_string(::geteuid());
    std::filesystem::create_directories(logs);
    std::string written = logs;
    SECTION("another user's") {
        if (::geteuid() != 0) {
            WARN("LEFT OUT: only root can give a folder away");
            return;
        }
        REQUIRE(::chown(logs.c_str(), 64123, 64123) == 0);
    }
    SECTION("everybody's") {
        REQUIRE(::chmod(logs.c_str(), 0777) == 0);
    }
    SECTION("a link to another place") {
        written = tmp + "/elsewhere";
        std::filesystem::rename(logs, written);
        std::filesystem::create_directory_symlink(written, logs);
    }
    Process& node = cluster.start({.argv = {Cluster::program("ddprun"), Cluster::worker()},
                                   .env = {{"TMPDIR", tmp}},
                                   .cwd = {},
                                   .name = "ddprun"});
    CHECK(node.wait_exit() == 2);
    CHECK(node.err().find("the log folder " + logs + " is not a folder of this user's alone") !=
          std::string::npos);
    CHECK(std::filesystem::is_empty(written));
}
