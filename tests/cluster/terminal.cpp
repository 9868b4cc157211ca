// A user who starts ddprun by hand sees one place for both streams, a real terminal.

#include <algorithm>
#include <regex>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"
#include "tests/support/fake_terminal.hpp"

using namespace ddprun::test;

namespace {

/// ddprun behind `2>&1`.
Process& start_merged(Cluster& cluster, std::vector<std::string> args) {
    args.insert(args.begin(), {Cluster::program("ddprun"), "--log-dir", cluster.dir() / "logs"});
    return cluster.start(
        {.argv = args, .env = {}, .cwd = {}, .name = "ddprun 2>&1", .is_merged = true});
}

Process& start_on_terminal(Cluster& cluster, std::vector<std::string> args) {
    args.insert(args.begin(), {Cluster::program("ddprun"), "--log-dir", cluster.dir() / "logs"});
    StartOptions options;
    options.argv = args;
    options.name = "ddprun on a terminal";
    options.is_on_terminal = true;
    options.env = {{"TERM", "xterm"}};
    return cluster.start(options);
}

std::string run_folder(const Cluster& cluster) {
    return std::filesystem::canonical(cluster.dir() / "logs/latest").string();
}

/// Returns the lines that stand on the terminal of `process`.
std::vector<std::string> screen_of(const Process& process) {
    FakeTerminal terminal(24, 80);
    terminal.feed(process.out());
    return terminal.lines();
}

std::string numbers(int count, const std::string& prefix = {}) {
    std::string text;
    for (int i = 0; i < count; ++i) {
        text += prefix + std::to_string(i) + "\n";
    }
    return text;
}

}  // namespace

TEST_CASE("behind 2>&1 a worker's two streams are one, in the order in which it wrote them") {
    Cluster cluster;
    Process& node = start_merged(cluster, {"--nproc-per-node", "2", Cluster::worker(),
                                           "--alternate", "2000", "--exit-code", "0"});
    REQUIRE(node.wait_exit() == 0);
    for (const char* local_rank : {"0", "1"}) {
        const std::string folder = run_folder(cluster) + "/attempt_0/" + local_rank;
        CHECK(list_folder(folder) == std::vector<std::string>{"output.log"});
        CHECK(read_file(folder + "/output.log") == numbers(2000));
    }
    Process& logs = cluster.start({.argv = {Cluster::program("ddpctl"), "logs", "--log-dir",
                                            cluster.dir() / "logs", "--rank", "1"},
                                   .env = {},
                                   .cwd = {},
                                   .name = "ddpctl"});
    CHECK(logs.wait_exit() == 0);
    CHECK(logs.out() == numbers(2000));
}

TEST_CASE("a merged stream is named output in JSON, and has the last words") {
    Cluster cluster;
    Process& node =
        start_merged(cluster, {"--log-format", "json", Cluster::worker(), "--complain", "sorry",
                               "--say", "the end is on stdout", "--exit-code", "3"});
    CHECK(node.wait_exit() == 3);
    const auto line = nlohmann::json::parse(node.wait_for_line("sorry"));
    CHECK(line["stream"] == "output");
    const auto report = nlohmann::json::parse(read_file(run_folder(cluster) + "/report.json"));
    CHECK(report["first_failure"]["last_words"] == "sorry\nthe end is on stdout\n");
}

TEST_CASE("streams that a flag tells apart stay apart behind 2>&1") {
    Cluster cluster;
    Process& node = start_merged(cluster, {"--nproc-per-node", "2", "--redirects", "0:2",
                                           Cluster::worker(), "--alternate", "4"});
    REQUIRE(node.wait_exit() == 0);
    const std::string folder = run_folder(cluster) + "/attempt_0";
    CHECK(list_folder(folder + "/0") == std::vector<std::string>{"stderr.log", "stdout.log"});
    CHECK(read_file(folder + "/0/stdout.log") == "0\n2\n");
    CHECK(read_file(folder + "/1/output.log") == numbers(4));
}

TEST_CASE("on a terminal workers have one each, with its window, that controls a single one") {
    Cluster cluster;
    const std::string end = cluster.dir() / "end";
    Process& node = start_on_terminal(
        cluster, {Cluster::worker(), "--say-window-on-change", "--say-window", "--write",
                  "10%\r20%\r\n", "--wait-for-file", end, "--exit-code", "0"});
    node.wait_for_line("^window out=1 err=1 controlling=1 rows=24 columns=80");
    node.wait_for_line("20%");
    node.resize(50, 120);
    node.wait_for_line("^window out=1 err=1 controlling=1 rows=50 columns=120");
    touch(end);
    CHECK(node.wait_exit() == 0);
    CHECK(read_file(run_folder(cluster) + "/by-rank/0/output.log") ==
          "window out=1 err=1 controlling=1 rows=24 columns=80\n"
          "10%\r20%\r\n"
          "window out=1 err=1 controlling=1 rows=50 columns=120\n");
}

TEST_CASE("on a terminal none of several workers is controlled by its own") {
    Cluster cluster;
    Process& node = start_on_terminal(
        cluster, {"--nproc-per-node", "2", Cluster::worker(), "--say-window", "--exit-code", "0"});
    REQUIRE(node.wait_exit() == 0);
    CHECK(read_file(run_folder(cluster) + "/by-rank/1/output.log") ==
          "window out=1 err=1 controlling=0 rows=24 columns=75\n");
}

TEST_CASE("a window that changes ends no worker, and costs none that does not ask") {
    Cluster cluster;
    const std::string end = cluster.dir() / "end";
    Process& node =
        start_on_terminal(cluster, {"--nproc-per-node", "2", Cluster::worker(), "--when-rank", "1",
                                    "--say-window-on-change", "--always", "--say", "ready {rank}",
                                    "--wait-for-file", end, "--exit-code", "0"});
    node.wait_for_lines("ready", 2);
    node.resize(30, 90);
    node.wait_for_line("^\\[1\\] window .* rows=30 columns=85");
    touch(end);
    CHECK(node.wait_exit() == 0);
    CHECK(read_file(run_folder(cluster) + "/by-rank/0/output.log") == "ready 0\n");
}

TEST_CASE("what is for a log alone, tee'd, or JSON on a terminal goes through pipes") {
    for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
             {"--redirects", "3"}, {"--tee", "3"}, {"--log-format", "json"}}) {
        Cluster cluster;
        std::vector<std::string> args = flags;
        args.insert(args.end(), {Cluster::worker(), "--say-window", "--exit-code", "0"});
        REQUIRE(start_on_terminal(cluster, args).wait_exit() == 0);
        const std::string folder = run_folder(cluster) + "/by-rank/0";
        CHECK(read_file(folder + "/output.log") + read_file(folder + "/stdout.log") ==
              "window out=0 err=0 controlling=0 rows=0 columns=0\n");
    }
}

TEST_CASE("on a terminal the bars of several ranks keep their places") {
    Cluster cluster;
    const std::string more = cluster.dir() / "more";
    const std::string end = cluster.dir() / "end";
    Process& node = start_on_terminal(cluster, {"--nproc-per-node",
                                                "2",
                                                Cluster::worker(),
                                                "--write",
                                                "\rstep 1 of {rank}",
                                                "--write",
                                                "\rstep 2 of {rank}",
                                                "--wait-for-file",
                                                more,
                                                "--when-rank",
                                                "1",
                                                "--write",
                                                "\r                \r",
                                                "--say",
                                                "checkpoint saved",
                                                "--write",
                                                "\rstep 3 of {rank}",
                                                "--touch",
                                                end,
                                                "--always",
                                                "--wait-for-file",
                                                end,
                                                "--exit-code",
                                                "0"});
    cluster.wait_until("both bars are there", [&] {
        return screen_of(node) == std::vector<std::string>{"[0] step 2 of 0", "[1] step 2 of 1"};
    });
    touch(more);
    REQUIRE(node.wait_exit() == 0);
    CHECK(screen_of(node) == std::vector<std::string>{"[1] checkpoint saved", "[0] step 2 of 0",
                                                      "[1] step 3 of 1", ""});
    CHECK(read_file(run_folder(cluster) + "/by-rank/0/output.log") == "\rstep 1 of 0\rstep 2 of 0");
}

TEST_CASE("on a terminal a prompt is shown, and nothing is behind it that others write") {
    Cluster cluster;
    const std::string other = cluster.dir() / "other";
    Process& node = start_on_terminal(
        cluster, {"--nproc-per-node", "2", Cluster::worker(), "--when-rank", "0", "--write",
                  "name? ", "--wait-for-file", other, "--always", "--when-rank", "1",
                  "--wait-for-file", other, "--say", "hello", "--always", "--exit-code", "0"});
    cluster.wait_until("the prompt is there",
                       [&] { return screen_of(node) == std::vector<std::string>{"[0] name?"}; });
    touch(other);
    REQUIRE(node.wait_exit() == 0);
    const std::vector<std::string> lines = screen_of(node);
    CHECK(lines == std::vector<std::string>{"[0] name?", "[1] hello", ""});
}

TEST_CASE("on a terminal each line says which ranks wrote it, once each") {
    Cluster cluster;
    Process& node =
        start_on_terminal(cluster, {"--nproc-per-node", "4", Cluster::worker(), "--say", "ready",
                                    "--say", "rank {rank}", "--exit-code", "0"});
    REQUIRE(node.wait_exit() == 0);
    // How many are one depends on how long the machine takes.
    std::string ranks;
    for (const std::string& line : screen_of(node)) {
        std::smatch match;
        if (std::regex_match(line, match, std::regex("\\[([0-3,-]+)\\] ready"))) {
            ranks += match.str(1) + ",";
        }
    }
    for (const char* range : {"0-3", "0-2", "1-3", "0-1", "1-2", "2-3"}) {
        const std::string all = "0,1,2,3";
        const std::size_t at = ranks.find(range);
        if (at != std::string::npos) {
            const std::size_t first = all.find(range[0]);
            ranks.replace(at, 3, all.substr(first, all.find(range[2]) - first + 1));
        }
    }
    CHECK(std::count(ranks.begin(), ranks.end(), ',') == 4);
    for (const char rank : {'0', '1', '2', '3'}) {
        CHECK(std::count(ranks.begin(), ranks.end(), rank) == 1);
        CHECK(node.count_lines(std::string("^\\[") + rank + "\\] rank " + rank) == 1);
    }
}

TEST_CASE("on a terminal one line below all others tells how far the job is until its end") {
    Cluster cluster;
    const std::string more = cluster.dir() / "more";
    const std::string end = cluster.dir() / "end";
    Process& node = start_on_terminal(cluster, {"--nproc-per-node",
                                                "2",
                                                Cluster::worker(),
                                                "--when-rank",
                                                "0",
                                                "--attach-page",
                                                "--progress",
                                                "41",
                                                "--always",
                                                "--wait-for-file",
                                                more,
                                                "--when-rank",
                                                "1",
                                                "--say",
                                                "hello",
                                                "--always",
                                                "--wait-for-file",
                                                end,
                                                "--exit-code",
                                                "0"});
    const std::string live = "ddprun: generation 1 | 1 node, 2 workers | step 41";
    cluster.wait_until("the live line is there", [&] { return screen_of(node).back() == live; });
    touch(more);
    cluster.wait_until("a line has gone above it", [&] {
        const std::vector<std::string> lines = screen_of(node);
        return lines.back() == live && lines.at(lines.size() - 2) == "[1] hello";
    });
    node.resize(24, 30);
    cluster.wait_until("it is cut", [&] { return screen_of(node).back() == live.substr(0, 29); });
    node.resize(24, 80);
    cluster.wait_until("it is whole", [&] { return screen_of(node).back() == live; });
    touch(end);
    REQUIRE(node.wait_exit() == 0);
    // Only the window that broke the line has left it where it was.
    const std::vector<std::string> lines = screen_of(node);
    CHECK(std::count(lines.begin(), lines.end(), live) == 1);
    CHECK(lines.back().empty());
}
