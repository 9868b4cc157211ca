// A rendezvous reports events of a whole job while its nodes come, die and are replaced.

#include <signal.h>

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/cluster/event_lines.hpp"
#include "tests/cluster/nodes.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun::test;

namespace {

Process& follow(Cluster& cluster, const std::vector<std::string>& args) {
    std::vector<std::string> argv = {Cluster::program("ddpctl"), "events"};
    argv.insert(argv.end(), args.begin(), args.end());
    return cluster.start({.argv = argv, .env = {}, .cwd = {}, .name = "ddpctl"});
}

std::string names_of(const std::vector<nlohmann::json>& events) {
    std::string names;
    for (const nlohmann::json& event : events) {
        // How far workers are is told beside what the nodes do, in no order with it.
        const bool is_beside =
            event["event"] == "waiting" || event["event"] == "spawned" || event["event"] == "main";
        if (!is_beside) {
            names += (names.empty() ? "" : " ") + event["event"].get<std::string>();
        }
    }
    return names;
}

const nlohmann::json& first_of(const std::vector<nlohmann::json>& events, const char* name) {
    for (const nlohmann::json& event : events) {
        if (event["event"] == name) {
            return event;
        }
    }
    FAIL("there is no event " << name);
    return events.front();
}

}  // namespace

TEST_CASE("who follows a job hears of its nodes, of a lost one, of its spare and of the end") {
    Cluster cluster;
    const Cluster::Daemon daemon = cluster.start_daemon();
    Job job;
    job.endpoint = daemon.endpoint;
    job.script = {"--print", "--wait-for-file", cluster.dir() / "end", "--exit-code", "0"};
    Process& first = start_node(cluster, job);
    Process& following = [&]() -> Process& {
        // There is no job to be followed before its first node has joined.
        first.wait_for_line("waiting|joined|1 of 2");
        return follow(cluster, {"--rdzv-endpoint", daemon.endpoint, "--rdzv-id", "test", "-f"});
    }();
    Process& second = start_node(cluster, job);
    first.wait_for_line(place_in(1));
    second.wait_for_line(place_in(1));
    Process& spare = start_node(cluster, job);
    following.wait_for_line("\"event\":\"spare\"");
    second.signal(SIGKILL);
    spare.wait_for_line(place_in(2));
    touch(cluster.dir() / "end");
    CHECK(first.wait_exit() == 0);
    CHECK(spare.wait_exit() == 0);
    CHECK(following.wait_exit() == 0);

    const std::vector<nlohmann::json> events = parsed_events(following.out());
    CHECK(names_of(events) ==
          "begun joined joined formed joined spare lost stop empty formed finished finished "
          "verdict");
    for (std::size_t i = 0; i < events.size(); ++i) {
        CHECK(events[i]["v"] == 1);
        CHECK(events[i]["seq"] == i + 1);
    }
    CHECK(first_of(events, "begun")["job"] == "test");
    CHECK(first_of(events, "formed")["workers"] == 2);
    CHECK(first_of(events, "lost")["text"] == "died (its connection ended)");
    CHECK(first_of(events, "stop")["cause"] == "failure");
    CHECK(first_of(events, "stop")["generation"] == 1);
    CHECK(first_of(events, "verdict")["generation"] == 2);
    CHECK(first_of(events, "verdict")["verdict"] == "succeeded");

    // The daemon keeps them as long as the verdict; the stream is over.
    Process& again =
        follow(cluster, {"test", "--rdzv-endpoint", daemon.endpoint, "-f", "--from", "3"});
    CHECK(again.wait_exit() == 0);
    CHECK(parsed_events(again.out()).size() == events.size() - 2);
    Process& stranger =
        follow(cluster, {"--rdzv-endpoint", daemon.endpoint, "--rdzv-id", "another"});
    CHECK(stranger.wait_exit() == 1);
    CHECK(stranger.count_lines("there is no job another") == 1);
    daemon.process.signal(SIGTERM);
    CHECK(daemon.process.wait_exit() == 0);
    cluster.wait_all_gone();
}

TEST_CASE("a failure is told with its rank, and nobody who watches keeps a daemon from ending") {
    Cluster cluster;
    const Cluster::Daemon daemon = cluster.start_daemon({"--exit-when-idle"});
    Job job;
    job.nnodes = "1";
    job.endpoint = daemon.endpoint;
    job.script = {"--print", "--wait-for-file", cluster.dir() / "fail", "--exit-code", "3"};
    Process& node = start_node(cluster, job);
    node.wait_for_line(place_in(1));
    Process& following = follow(cluster, {"--rdzv-endpoint", daemon.endpoint, "-f"});
    following.wait_for_line("\"event\":\"formed\"");
    touch(cluster.dir() / "fail");
    CHECK(node.wait_exit() == 3);
    CHECK(following.wait_exit() == 0);
    CHECK(daemon.process.wait_exit() == 0);
    const std::vector<nlohmann::json> events = parsed_events(following.out());
    const nlohmann::json& failure = first_of(events, "failure");
    CHECK(failure["rank"] == 0);
    CHECK(failure["exit_code"] == 3);
    CHECK(failure["generation"] == 1);
    CHECK(first_of(events, "verdict")["exit_code"] == 3);
    cluster.wait_all_gone();
}
