// Goal: --memory-checkpoints keeps what workers wrote across their deaths, and --memory-replicas
// keeps it on another node. Method: real jobs, whose workers only live; the test asks their
// node's ddprun-memory in their place.

#include <csignal>
#include <cstdlib>
#include <string>

#include "tests/cluster/nodes.hpp"
#include "tests/cluster/proc.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/certificates.hpp"
#include "tests/support/cluster.hpp"
#include "tests/support/memory_client.hpp"

using namespace ddprun::test;

namespace {

constexpr const char* kVariable = "DDPRUN_MEMORY_CHECKPOINTS";

/// From line `from` on.
std::string socket_of(Process& node, std::size_t from = 0) {
    const std::string line =
        node.wait_for_line(std::string("^") + kVariable + "=@[0-9a-f]+$", from);
    return line.substr(line.find('@'));
}

/// From line `from` on.
pid_t worker_of(Process& node, int generation, std::size_t from = 0) {
    const std::string line = node.wait_for_line(place_in(generation), from);
    return std::atoi(line.c_str() + line.find(" pid=") + 5);
}

/// A job of one node and two generations, whose workers end once the file `end` exists.
Process& start_job(Cluster& cluster, const std::string& end) {
    return cluster.start_ddprun({"--max-restarts", "1", "--memory-checkpoints", "64M",
                                 Cluster::worker(), "--variable", kVariable, "--print",
                                 "--wait-for-file", end});
}

pid_t memory_program() {
    for (const pid_t pid : descendants()) {
        const std::string command = read_file("/proc/" + std::to_string(pid) + "/cmdline");
        if (command.find("ddprun-memory") != std::string::npos) {
            return pid;
        }
    }
    return 0;
}

}  // namespace

TEST_CASE("a checkpoint in memory survives its worker, and goes with ddprun") {
    Cluster cluster;
    const std::string end = cluster.dir() / "end";
    Process& node = start_job(cluster, end);
    const std::string socket = socket_of(node);
    const pid_t worker = worker_of(node, 1);
    {
        MemoryClient client(socket, 0, 1);
        CHECK(client.endpoint().empty());
        (void)client.write(7, "model", "weights");
        client.seal(7);
    }
    const std::size_t seen = node.line_count();
    REQUIRE(::kill(worker, SIGKILL) == 0);
    (void)worker_of(node, 2, seen);
    CHECK(socket_of(node, seen) == socket);
    MemoryClient next(socket, 0, 2);
    CHECK(next.read(7, "model") == "weights");
    touch(end);
    CHECK(node.wait_exit() == 0);
    cluster.wait_all_gone();
    CHECK_FALSE(connect_to(socket).is_open());
}

TEST_CASE("a job goes on without ddprun-memory, and the next generation has it again") {
    Cluster cluster;
    const std::string end = cluster.dir() / "end";
    Process& node = start_job(cluster, end);
    const std::string socket = socket_of(node);
    const pid_t worker = worker_of(node, 1);
    const MemoryClient client(socket, 0, 1);  // it is ddprun-memory now, and no longer env
    const pid_t program = memory_program();
    REQUIRE(program > 0);
    REQUIRE(::kill(program, SIGKILL) == 0);
    node.wait_for_line("ddprun-memory was killed by SIGKILL; the checkpoints in memory are gone");
    const std::size_t seen = node.line_count();
    REQUIRE(::kill(worker, SIGKILL) == 0);
    (void)worker_of(node, 2, seen);
    MemoryClient next(socket_of(node, seen), 0, 2);
    CHECK(next.list().empty());
    touch(end);
    CHECK(node.wait_exit() == 0);
    cluster.wait_all_gone();
}

TEST_CASE("with --memory-replicas 1 the other node has a copy, in clear only without TLS") {
    const bool has_tls = GENERATE(false, true);
    Cluster cluster;
    const Authority authority("ours");
    const std::string ca = cluster.dir() / "ca.pem";
    const std::string cert = cluster.dir() / "cert.pem";
    const std::string key = cluster.dir() / "key.pem";
    authority.write_cert(ca);
    authority.issue(cert, key, "IP:127.0.0.1");
    const FreePort port;
    const std::string end = cluster.dir() / "end";
    Job job;
    job.endpoint = port.endpoint();
    job.flags = {"--memory-checkpoints", "64M", "--memory-replicas", "1"};
    if (has_tls) {
        job.flags.insert(job.flags.end(), {"--tls-ca", ca, "--tls-cert", cert, "--tls-key", key});
    }
    job.script = {"--variable", kVariable, "--print", "--wait-for-file", end};
    Process& first = start_node(cluster, job);
    Process& second = start_node(cluster, job);
    MemoryClient left(socket_of(first), 0, 1);
    CHECK((first.text().find("not encrypted") == std::string::npos) == has_tls);
    MemoryClient right(socket_of(second), 1, 1);
    CHECK(left.endpoint().rfind("127.0.0.1:", 0) == 0);
    left.name_partner(right.endpoint());
    CHECK(left.write(7, "model", "weights").note.empty());
    right.seal(7);
    CHECK(right.read(7, "model") == "weights");
    touch(end);
    CHECK(first.wait_exit() == 0);
    CHECK(second.wait_exit() == 0);
    cluster.wait_all_gone();
}
