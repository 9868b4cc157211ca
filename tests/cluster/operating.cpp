// Operators give a job orders, with real daemons, nodes and ddpctl: each order is carried out, is
// an event with who asked, and uses up no restart; an order needs the operators' secret.

#include <sys/stat.h>

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/cluster/event_lines.hpp"
#include "tests/cluster/nodes.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun::test;

namespace {

/// 64 digits that only this user may read.
std::string secret_file(const Cluster& cluster, const std::string& name, char digit) {
    const std::string path = cluster.dir() / name;
    write_file(path, std::string(64, digit) + "\n");
    REQUIRE(::chmod(path.c_str(), 0600) == 0);
    return path;
}

/// A daemon that takes orders, and a job whose workers save and leave when they are asked.
struct Operated {
    explicit Operated(const std::string& nnodes)
        : secret(secret_file(cluster, "operators", 'a')),
          daemon(cluster.start_daemon({"--operator-secret-file", secret})) {
        job.nnodes = nnodes;
        job.endpoint = daemon.endpoint;
        job.script = {"--exit-on-signal",   "15", "0", "--print", "--wait-for-file",
                      cluster.dir() / "end"};
    }

    Process& node(const std::string& id) { return start_node(cluster, job, {"--node-id", id}); }

    Process& ctl(const std::vector<std::string>& args) {
        std::vector<std::string> argv = {Cluster::program("ddpctl")};
        argv.insert(argv.end(), args.begin(), args.end());
        argv.insert(argv.end(), {"--rdzv-endpoint", job.endpoint, "--rdzv-id", "test"});
        return cluster.start(
            {.argv = argv, .env = {{"LOGNAME", "alice"}}, .cwd = {}, .name = "ddpctl"});
    }

    /// Gives an order and returns ddpctl's answer to it.
    std::string give(std::vector<std::string> args, int exit_code = 0) {
        args.insert(args.end(), {"--operator-secret-file", secret});
        Process& process = ctl(args);
        CHECK(process.wait_exit() == exit_code);
        return exit_code == 0 ? process.out() : process.err();
    }

    nlohmann::json last_order() {
        Process& process = ctl({"events"});
        CHECK(process.wait_exit() == 0);
        nlohmann::json last;
        for (const nlohmann::json& event : parsed_events(process.out())) {
            last = event["event"] == "operator" ? event : last;
        }
        return last;
    }

    void finish(const std::vector<Process*>& nodes) {
        touch(cluster.dir() / "end");
        for (Process* node : nodes) {
            CHECK(node->wait_exit() == 0);
        }
    }

    Cluster cluster;
    std::string secret;
    Cluster::Daemon daemon;
    Job job;
};

/// Matches a worker of generation `generation` with `world` workers, and no restart used.
std::string world_in(int world, int generation) {
    return "^worker .* world=" + std::to_string(world) +
           " .* generation=" + std::to_string(generation) + " restarts=0 ";
}

}  // namespace

TEST_CASE("a drained node saves and leaves, and a spare takes its place") {
    Operated job("2");
    Process& a = job.node("a");
    Process& b = job.node("b");
    a.wait_for_line(place_in(1));
    b.wait_for_line(place_in(1));
    Process& c = job.node("c");
    c.wait_for_line("this node is a spare");
    CHECK(job.give({"drain", "b"}).find("leaves when all workers have saved") != std::string::npos);
    CHECK(b.wait_exit() == 75);
    a.wait_for_line(world_in(2, 2));
    c.wait_for_line(world_in(2, 2));
    const nlohmann::json order = job.last_order();
    CHECK(order["action"] == "drain");
    CHECK(order["node"] == "b");
    CHECK(order["by"].get<std::string>().find("alice@") == 0);
    CHECK(order["from"].get<std::string>().find("127.0.0.1") == 0);
    CHECK(job.give({"drain", "nobody"}, 1).find("has no node nobody; it has a, c") !=
          std::string::npos);
    job.finish({&a, &c});
}

TEST_CASE("a restart by order uses up no restart") {
    Operated job("2");
    job.job.flags = {"--max-restarts", "0"};
    Process& a = job.node("a");
    Process& b = job.node("b");
    a.wait_for_line(place_in(1));
    b.wait_for_line(place_in(1));
    const std::string answer = job.give({"restart", "--json"});
    CHECK(nlohmann::json::parse(answer)["event"] == job.last_order()["seq"]);
    a.wait_for_line(world_in(2, 2));
    b.wait_for_line(world_in(2, 2));
    job.finish({&a, &b});
}

TEST_CASE("while a job is held nothing starts, and it starts when it is released") {
    Operated job("2");
    Process& a = job.node("a");
    a.wait_for_line("1 of 2 here");
    job.give({"hold", "--for", "10m"});
    Process& b = job.node("b");
    b.wait_for_line("held by alice@.* for 600 s, or until it is released");
    CHECK(job.last_order()["for_s"] == 600);
    CHECK(job.give({"hold", "--for", "25h"}, 2).find("at most 86400 s") != std::string::npos);
    job.give({"release"});
    a.wait_for_line(place_in(1));
    b.wait_for_line(place_in(1));
    CHECK(job.give({"release"}, 1).find("is not held") != std::string::npos);
    job.finish({&a, &b});
}

TEST_CASE("a job that an operator stops is over on every node, with a code of its own") {
    Operated job("2");
    Process& a = job.node("a");
    Process& b = job.node("b");
    a.wait_for_line(place_in(1));
    b.wait_for_line(place_in(1));
    job.give({"stop"});
    CHECK(a.wait_exit() == 98);
    CHECK(b.wait_exit() == 98);
    CHECK(a.count_lines("stopped by alice@") > 0);
    CHECK(job.give({"restart"}, 1).find("job test is over: stopped by alice@") !=
          std::string::npos);
    // A node that comes late is told of the end, and does not begin the job anew.
    CHECK(job.node("c").wait_exit() == 98);
}

TEST_CASE("a job is shrunk and grown within its bounds") {
    Operated job("1:2");
    Process& a = job.node("a");
    a.wait_for_line(world_in(1, 1));
    Process& b = job.node("b");
    a.wait_for_line(world_in(2, 2));
    b.wait_for_line(world_in(2, 2));
    CHECK(job.give({"shrink", "3"}, 2).find("--nnodes 1:2") != std::string::npos);
    job.give({"shrink", "1"});
    a.wait_for_line(world_in(1, 3));
    b.wait_for_line("this node is a spare");
    CHECK(job.give({"shrink", "2"}, 1).find("grow it") != std::string::npos);
    job.give({"grow", "2"});
    a.wait_for_line(world_in(2, 4));
    b.wait_for_line(world_in(2, 4));
    CHECK(job.last_order()["nodes"] == 2);
    job.finish({&a, &b});
}

TEST_CASE("a node in quarantine is left out until it is released") {
    Operated job("1:2");
    Process& a = job.node("a");
    a.wait_for_line(world_in(1, 1));
    Process& b = job.node("b");
    a.wait_for_line(world_in(2, 2));
    b.wait_for_line(world_in(2, 2));
    job.give({"quarantine", "b", "--for", "1h"});
    a.wait_for_line(world_in(1, 3));
    b.wait_for_line("was put in quarantine by alice@");
    CHECK(job.give({"release", "a"}, 1).find("is not in quarantine; in it: b") !=
          std::string::npos);
    job.give({"release", "b"});
    a.wait_for_line(world_in(2, 4));
    b.wait_for_line(world_in(2, 4));
    job.finish({&a, &b});
}

TEST_CASE("a ddprun that starts the rendezvous has it take orders, too") {
    Operated job("2");
    const FreePort port;
    job.job.endpoint = port.endpoint();
    job.job.flags = {"--operator-secret-file", job.secret};
    Process& a = job.node("a");
    Process& b = job.node("b");
    a.wait_for_line(place_in(1));
    b.wait_for_line(place_in(1));
    job.give({"restart"});
    a.wait_for_line(world_in(2, 2));
    b.wait_for_line(world_in(2, 2));
    job.finish({&a, &b});
}

TEST_CASE("nobody gives an order without the operators' secret") {
    Operated job("1");
    Process& a = job.node("a");
    a.wait_for_line(place_in(1));
    const auto refusal = [&](const std::vector<std::string>& args) {
        Process& process = job.ctl(args);
        CHECK(process.wait_exit() == 2);
        return process.err();
    };
    CHECK(refusal({"restart"}).find("orders need --operator-secret-file FILE") !=
          std::string::npos);
    const std::string wrong = secret_file(job.cluster, "wrong", 'b');
    const std::string nodes = job.cluster.dir() / "home/.config/ddprun/secret";
    for (const std::string& file : {wrong, nodes}) {
        CHECK(refusal({"restart", "--operator-secret-file", file})
                  .find("is not that of the rendezvous") != std::string::npos);
    }
    CHECK(job.daemon.process.count_lines("its secret is not ours|perhaps its secret is another") >
          0);
    CHECK(a.count_lines(place_in(2)) == 0);

    const Cluster::Daemon plain = job.cluster.start_daemon();
    job.job.endpoint = plain.endpoint;
    CHECK(refusal({"restart", "--operator-secret-file", job.secret})
              .find("takes no orders; start it") != std::string::npos);
    Process& same = job.cluster.start({.argv = {Cluster::program("ddprun-rendezvous"), "--port",
                                                "0", "--operator-secret-file", nodes},
                                       .env = {},
                                       .cwd = {},
                                       .name = "daemon"});
    CHECK(same.wait_exit() == 2);
    CHECK(same.count_lines("it is the secret of the nodes, who would all be operators") == 1);
    job.finish({&a});
}
