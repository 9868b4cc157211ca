// Events of real jobs: in the run's folder, on its socket, through ddpctl.

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "agent/output/run_socket.hpp"
#include "tests/cluster/event_lines.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun;
using namespace ddprun::test;

namespace {

/// Other jobs run on this machine, other tests' among them.
const std::string kJob = fmt::format("llama{}", ::getpid());

Process& start_ctl(Cluster& cluster, std::vector<std::string> args) {
    args.insert(args.begin(), Cluster::program("ddpctl"));
    args.insert(args.end(), {"--log-dir", cluster.dir() / "logs"});
    return cluster.start({.argv = args, .env = {}, .cwd = {}, .name = "ddpctl"});
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

/// Leaves out two events: the disk may return last words at any time, and the only worker, which is
/// dying, may be gone before ddprun signals it.
std::string names_of(const std::vector<nlohmann::json>& events) {
    std::string names;
    for (const nlohmann::json& event : events) {
        if (event["event"] == "last_words") {
            CHECK(event["text"] == "bad weather");
            continue;
        }
        if (event["event"] == "stopping") {
            continue;
        }
        names += (names.empty() ? "" : " ") + event["event"].get<std::string>();
    }
    return names;
}

/// A worker that trains and fails in the first generation once `fail` exists, and ends in the
/// second once `end` exists.
std::vector<std::string> failing_once(const std::string& fail, const std::string& end) {
    return {"--max-restarts",
            "1",
            "--rdzv-id",
            kJob,
            Cluster::worker(),
            "--attach-page",
            "--progress",
            "7",
            "--before-generation",
            "2",
            "--say",
            "first",
            "--wait-for-file",
            fail,
            "--complain",
            "bad weather",
            "--exit-code",
            "3",
            "--always",
            "--say",
            "second",
            "--wait-for-file",
            end,
            "--exit-code",
            "0"};
}

}  // namespace

TEST_CASE("what happened to a job on one node is in events.jsonl, in order and numbered") {
    Cluster cluster;
    touch(cluster.dir() / "fail");
    touch(cluster.dir() / "end");
    Process& node =
        cluster.start_ddprun(failing_once(cluster.dir() / "fail", cluster.dir() / "end"));
    REQUIRE(node.wait_exit() == 0);
    const std::vector<nlohmann::json> events =
        parsed_events(read_file(run_folder(cluster) + "/events.jsonl"));
    CHECK(names_of(events) ==
          "begun link_up joined formed spawned main first_step failure stop stopped "
          "empty ready formed spawned main first_step finished verdict stopped empty exit");
    for (std::size_t i = 0; i < events.size(); ++i) {
        CHECK(events[i]["v"] == 1);
        CHECK(events[i]["seq"] == i + 1);
    }
    const nlohmann::json& failure = events.at(7);
    CHECK(failure["generation"] == 1);
    CHECK(failure["rank"] == 0);
    CHECK(failure["exit_code"] == 3);
    CHECK(failure["step"] == 7);
    CHECK(failure["mono_ns"] >= events.at(6)["mono_ns"]);
    Process& shown = start_ctl(cluster, {"events", kJob});
    CHECK(shown.wait_exit() == 0);
    CHECK(shown.out() == read_file(run_folder(cluster) + "/events.jsonl"));
    cluster.wait_all_gone();
}

TEST_CASE("a running job on one node is listed, asked and followed through its restart") {
    Cluster cluster;
    const std::string fail = cluster.dir() / "fail";
    const std::string end = cluster.dir() / "end";
    Process& node = cluster.start_ddprun(failing_once(fail, end));
    node.wait_for_line("^first$");
    cluster.wait_until("the run answers", [&] {
        return ::access((run_folder(cluster) + "/ddprun.sock").c_str(), F_OK) == 0;
    });
    struct stat status {};
    REQUIRE(::stat((run_folder(cluster) + "/ddprun.sock").c_str(), &status) == 0);
    CHECK((status.st_mode & 07777U) == 0600U);
    Process& following = start_ctl(cluster, {"events", kJob, "--follow"});
    following.wait_for_line("\"event\":\"spawned\"");
    touch(fail);
    following.wait_for_line("\"event\":\"formed\",\"generation\":2");
    node.wait_for_line("^second$");

    Process& jobs = start_ctl(cluster, {"jobs"});
    CHECK(jobs.wait_exit() == 0);
    CHECK(jobs.count_lines("^" + kJob + "_[0-9a-f]{8} +ddprun_test_worker +[0-9]+ +2 +7 ") == 1);
    Process& asked = start_ctl(cluster, {"status", kJob});
    CHECK(asked.wait_exit() == 0);
    CHECK(asked.count_lines("^  workers generation 2, 1 here of 1$") == 1);
    CHECK(asked.count_lines("rank 0, pid [0-9]+, step 7$") == 1);
    CHECK(asked.count_lines("^  time    training [0-9.]+ % of ") == 1);
    CHECK(asked.count_lines("generation 1 to 2, .*: stop .*, prove empty .*, spawn .*first step") ==
          1);
    touch(end);
    CHECK(node.wait_exit() == 0);
    CHECK(following.wait_exit() == 0);
    CHECK(following.out() == read_file(run_folder(cluster) + "/events.jsonl"));
    CHECK(::access((run_folder(cluster) + "/ddprun.sock").c_str(), F_OK) != 0);
    Process& over = start_ctl(cluster, {"status", kJob});
    CHECK(over.wait_exit() == 0);
    CHECK(over.count_lines("^job " + kJob + ": over, exit code 0: every rank exited 0$") == 1);
    cluster.wait_all_gone();
}

TEST_CASE("a run in a folder that nobody named is found, with a path longer than a socket's") {
    Cluster cluster;
    const std::string end = cluster.dir() / "end";
    const std::string logs = cluster.dir() / std::string(120, 'x');
    Process& node = cluster.start(
        {.argv = {Cluster::program("ddprun"), "--log-dir", logs, "--rdzv-id", kJob,
                  Cluster::worker(), "--say", "on", "--wait-for-file", end, "--exit-code", "0"},
         .env = {},
         .cwd = {},
         .name = "ddprun"});
    node.wait_for_line("^on$");
    Process& asked = start_ctl(cluster, {"events", kJob, "--follow"});
    asked.wait_for_line("\"event\":\"spawned\"");
    touch(end);
    CHECK(node.wait_exit() == 0);
    CHECK(asked.wait_exit() == 0);
    CHECK(asked.count_lines("\"event\":\"exit\",\"exit_code\":0") == 1);
}

TEST_CASE("who asks for what there is not, or says nothing, holds nobody up") {
    Cluster cluster;
    const std::string end = cluster.dir() / "end";
    Process& node = cluster.start_ddprun({"--rdzv-id", kJob, Cluster::worker(), "--say", "on",
                                          "--wait-for-file", end, "--exit-code", "0"});
    node.wait_for_line("^on$");
    const std::string folder = run_folder(cluster);
    const auto ask = [&](const std::string& text) {
        Result<UniqueFd> socket = agent::connect_to_run(folder);
        REQUIRE(socket);
        REQUIRE(::send(socket->get(), text.data(), text.size(), MSG_NOSIGNAL) ==
                static_cast<ssize_t>(text.size()));
        std::string answer;
        char piece[4096];
        for (ssize_t count = 0; (count = ::recv(socket->get(), piece, sizeof(piece), 0)) > 0;) {
            answer.append(piece, static_cast<std::size_t>(count));
        }
        return answer;
    };
    cluster.wait_until("the run answers",
                       [&] { return agent::connect_to_run(folder).has_value(); });
    CHECK(ask("GET /none HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 404 "));
    CHECK(ask("POST /status HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 405 "));
    CHECK(ask("GET /events?from=x HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 400 "));
    CHECK(ask("GET /status HTTP/1.1\r\nX: " + std::string(9000, 'x') + "\r\n\r\n").empty());
    const std::string status = ask("GET /status HTTP/1.0\r\n\r\n");
    CHECK(status.starts_with("HTTP/1.1 200 OK\r\nContent-Type: application/json"));
    CHECK(status.find("\"job\":\"" + kJob + "\"") != std::string::npos);
    const Result<UniqueFd> silent = agent::connect_to_run(folder);
    REQUIRE(silent);
    touch(end);
    CHECK(node.wait_exit() == 0);
    cluster.wait_all_gone();
}
