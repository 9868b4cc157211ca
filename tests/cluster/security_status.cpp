// Goal: ddpctl reports the state of a real job, or what keeps it from reporting.

#include <signal.h>

#include <filesystem>

#include <nlohmann/json.hpp>

#include "tests/cluster/nodes.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"
#include "tests/support/places.hpp"

using namespace ddprun::test;

namespace {

Process& ask(Cluster& cluster, const std::string& endpoint,
             const std::vector<std::string>& flags = {}) {
    StartOptions options;
    options.argv = {bin_dir() + "/ddpctl", "status", "--rdzv-endpoint", endpoint};
    options.argv.insert(options.argv.end(), flags.begin(), flags.end());
    return cluster.start(options);
}

nlohmann::json ask_json(Cluster& cluster, const std::string& endpoint) {
    Process& asking = ask(cluster, endpoint, {"--rdzv-id", "test", "--json"});
    REQUIRE(asking.wait_exit() == 0);
    const nlohmann::json reply = nlohmann::json::parse(asking.out(), nullptr, false);
    REQUIRE(reply.is_object());
    REQUIRE(reply.at("jobs").size() == 1);
    return reply.at("jobs").at(0);
}

}  // namespace

TEST_CASE("ddpctl names what a job waits for while it waits, then who runs which ranks") {
    Cluster cluster;
    const Cluster::Daemon daemon = cluster.start_daemon();
    Job job;
    job.nnodes = "3";
    job.slots = 2;
    job.endpoint = daemon.endpoint;
    job.flags = {"--max-restarts", "4"};
    job.script = {"--print", "--wait-for-file", cluster.dir() / "end"};
    Process& first = start_node(cluster, job);
    first.wait_for_line("waiting for 2 nodes more: 1 of 3 here");
    const nlohmann::json waiting = ask_json(cluster, daemon.endpoint);
    CHECK(waiting.at("phase") == "forming");
    CHECK(waiting.at("waits_for")
              .get<std::string>()
              .find("waiting for 2 nodes more: 1 of 3 here (") == 0);
    CHECK(waiting.at("nodes").size() == 1);
    CHECK(waiting.at("nodes").at(0).at("standing") == "ready");
    CHECK(waiting.at("nodes").at(0).at("lease_left_ms").get<int>() <= 1000);
    Process& shown = ask(cluster, daemon.endpoint);
    CHECK(shown.wait_exit() == 0);
    // The reason for the wait comes on top, right below the job's name.
    CHECK(shown.out().find("job test: forming for ") == 0);
    CHECK(shown.out().find("\n  waiting for 2 nodes more: 1 of 3 here (") < 100);
    CHECK(shown.out().find("0 of 4 restarts") != std::string::npos);
    // A job is named by itself, too.
    Process& named = ask(cluster, daemon.endpoint, {"test"});
    CHECK(named.wait_exit() == 0);
    CHECK(named.out().find("job test: forming for ") == 0);
    Process& other = ask(cluster, daemon.endpoint, {"gpt"});
    CHECK(other.wait_exit() == 1);
    CHECK(other.err() ==
          "ddpctl: the rendezvous at " + daemon.endpoint + " knows no job gpt; it has test\n");

    Process& second = start_node(cluster, job);
    Process& third = start_node(cluster, job);
    for (Process* node : {&first, &second, &third}) {
        node->wait_for_line(place_in(1));
    }
    const nlohmann::json running = ask_json(cluster, daemon.endpoint);
    CHECK(running.at("phase") == "running");
    CHECK(running.at("generation") == 1);
    CHECK(running.at("world_size") == 6);
    CHECK(running.at("waits_for") == "");
    REQUIRE(running.at("nodes").size() == 3);
    for (int i = 0; i < 3; ++i) {
        CHECK(running.at("nodes").at(i).at("group_rank") == i);
        CHECK(running.at("nodes").at(i).at("base_rank") == 2 * i);
        CHECK(running.at("nodes").at(i).at("is_connected") == true);
    }
    CHECK_FALSE(running.at("events").empty());
    touch(cluster.dir() / "end");
    for (Process* node : {&first, &second, &third}) {
        CHECK(node->wait_exit() == 0);
    }
    // The verdict is kept for a while.
    const nlohmann::json closed = ask_json(cluster, daemon.endpoint);
    CHECK(closed.at("phase") == "closed");
    CHECK(closed.at("exit_code") == 0);
    daemon.process.signal(SIGTERM);
    CHECK(daemon.process.wait_exit() == 0);
    cluster.wait_all_gone();
}

TEST_CASE("ddpctl says what keeps it from answering, each with its exit code") {
    Cluster cluster;
    const Cluster::Daemon daemon = cluster.start_daemon();
    Process& unknown = ask(cluster, daemon.endpoint, {"--rdzv-id", "gpt"});
    CHECK(unknown.wait_exit() == 1);
    CHECK(unknown.err() == "ddpctl: the rendezvous at " + daemon.endpoint +
                               " knows no job gpt; leave --rdzv-id out to see all\n");
    Process& empty = ask(cluster, daemon.endpoint);
    CHECK(empty.wait_exit() == 0);
    CHECK(empty.err() == "ddpctl: the rendezvous at " + daemon.endpoint + " has no job\n");
    const FreePort nobody;
    Process& alone = ask(cluster, nobody.endpoint());
    CHECK(alone.wait_exit() == 69);
    CHECK(alone.err().find("cannot connect to the rendezvous at " + nobody.endpoint() +
                           ": Connection refused") != std::string::npos);
    CHECK(alone.err().find("or ask a run on this machine: ddpctl jobs lists them") !=
          std::string::npos);
    // ddpctl takes the first of several endpoints that answers.
    Process& second = ask(cluster, nobody.endpoint() + "," + daemon.endpoint);
    CHECK(second.wait_exit() == 0);
    Process& open = ask(cluster, daemon.endpoint, {"--insecure"});
    CHECK(open.wait_exit() == 2);
    CHECK(open.err().find("asks for a secret") != std::string::npos);
    write_file(cluster.dir() / "other", std::string(64, 'a') + "\n");
    std::filesystem::permissions(cluster.dir() / "other", std::filesystem::perms::owner_read);
    Process& wrong = ask(cluster, daemon.endpoint, {"--secret-file", cluster.dir() / "other"});
    CHECK(wrong.wait_exit() == 2);
    CHECK(wrong.err().find("the secret of this node is not that of the rendezvous") !=
          std::string::npos);
    Process& missing = ask(cluster, daemon.endpoint, {"--secret-file", cluster.dir() / "none"});
    CHECK(missing.wait_exit() == 2);
    Process& typo = ask(cluster, daemon.endpoint, {"--jsn"});
    CHECK(typo.wait_exit() == 2);
    Process& help = cluster.start({.argv = {bin_dir() + "/ddpctl", "--help"}});
    CHECK(help.wait_exit() == 0);
    CHECK(help.out().find("exit codes:") != std::string::npos);
    daemon.process.signal(SIGTERM);
    CHECK(daemon.process.wait_exit() == 0);
    cluster.wait_all_gone();
}
