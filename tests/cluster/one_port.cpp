// Goal: one port for everything. torchrun's own nodes meet at a daemon with --serve-tcpstore; the
// workers of ddprun's nodes find their store at the rendezvous; who is refused is told on the
// console of the first node.

#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/cluster/nodes.hpp"
#include "tests/process/store_client.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/places.hpp"
#include "tests/support/store_requests.hpp"
#include "tests/support/torch_python.hpp"

using namespace ddprun::test;
using ddprun::rdzv::store_test::StoreClientSocket;

namespace {

const std::string kScripts = source_dir() + "/tests/cluster/workers/";

/// PyTorch's launcher, from the same folder as its Python.
std::string torchrun() {
    const std::string python = DDPRUN_TORCH_PYTHON;
    return python.substr(0, python.rfind('/')) + "/torchrun";
}

Process& start_torchrun(Cluster& cluster, int nodes, const std::string& endpoint,
                        const std::vector<std::string>& script) {
    std::vector<std::string> argv = {torchrun(),
                                     "--nnodes",
                                     std::to_string(nodes),
                                     "--nproc-per-node",
                                     "1",
                                     "--max-restarts",
                                     "1",
                                     "--rdzv-backend",
                                     "c10d",
                                     "--rdzv-conf",
                                     "is_host=0",
                                     "--rdzv-endpoint",
                                     endpoint,
                                     "--rdzv-id",
                                     "parity",
                                     "--local-addr",
                                     "127.0.0.1"};
    argv.insert(argv.end(), script.begin(), script.end());
    return cluster.start({.argv = argv});
}

std::uint16_t port_of(const std::string& endpoint) {
    return static_cast<std::uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1)));
}

/// True: a process listens on `port` of this machine.
bool is_answered(std::uint16_t port) {
    const ddprun::UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const void* const generic = &address;
    return ::connect(socket.get(), static_cast<const sockaddr*>(generic), sizeof address) == 0;
}

void stop(Cluster& cluster, const Cluster::Daemon& daemon) {
    daemon.process.signal(SIGTERM);
    CHECK(daemon.process.wait_exit() == 0);
    cluster.wait_all_gone();
}

}  // namespace

TEST_CASE("torchrun's nodes meet at a rendezvous of ours and survive a worker's failure") {
    if (!is_torch_python_there()) {
        return;
    }
    const int nodes = GENERATE(2, 4);
    Cluster cluster;
    const Cluster::Daemon daemon = cluster.start_daemon({"--serve-tcpstore"});
    std::vector<std::string> script = {kScripts + "say_place.py"};
    const bool fails = nodes == 2;
    if (fails) {
        script.push_back(cluster.dir().path());
        REQUIRE(::mkfifo((cluster.dir() / "fifo").c_str(), 0600) == 0);
    }
    std::vector<Process*> launchers;
    for (int i = 0; i < nodes; ++i) {
        launchers.push_back(&start_torchrun(cluster, nodes, daemon.endpoint, script));
    }
    for (Process* launcher : launchers) {
        CHECK(launcher->wait_exit() == 0);
    }
    const auto count = [&](const std::string& pattern) {
        std::size_t lines = 0;
        for (Process* launcher : launchers) {
            lines += launcher->count_lines(pattern);
        }
        return lines;
    };
    for (int rank = 0; rank < nodes; ++rank) {
        CHECK(count("^place " + std::to_string(rank) + " of " + std::to_string(nodes) + " ") ==
              (fails ? 2 : 1));
    }
    CHECK(count("^place .* restarts=1$") == (fails ? 1 : 0));
    stop(cluster, daemon);
}

TEST_CASE("a static job has rendezvous and store at one port, also after a restart") {
    if (!is_torch_python_there()) {
        return;
    }
    Cluster cluster;
    const FreePort port;
    const auto start = [&](const std::string& rank) -> Process& {
        return cluster.start_ddprun(
            {"--nnodes", "2", "--nproc-per-node", "1", "--rdzv-id", "static", "--node-rank", rank,
             "--max-restarts", "1", "--master-addr", "127.0.0.1", "--master-port",
             std::to_string(port.port()), kScripts + "all_reduce.py"},
            {{"PYTHON_EXEC", DDPRUN_TORCH_PYTHON}});
    };
    Process& first = start("0");
    Process& second = start("1");
    for (Process* node : {&first, &second}) {
        CHECK(node->wait_exit() == 0);
        for (const std::string attempt : {"0", "1"}) {
            CHECK(node->count_lines("^sum 1 of 2 attempt=" + attempt + " at=" + port.endpoint() +
                                    "$") == 1);
        }
        // The second attempt's store knew nothing of the first one.
        CHECK(node->count_lines("^calls of others: False$") == 2);
    }
    cluster.wait_all_gone();
}

TEST_CASE("workers that reach the store through a relay notice nothing but the address") {
    if (!is_torch_python_there()) {
        return;
    }
    const std::string store = GENERATE("agent", "daemon");
    Cluster cluster;
    const FreePort port;
    const auto start = [&](const std::string& rank) -> Process& {
        return cluster.start_ddprun(
            {"--nnodes", "2", "--nproc-per-node", "2", "--rdzv-id", "relay", "--node-rank", rank,
             "--max-restarts", "1", "--rdzv-endpoint", port.endpoint(), "--store", store,
             "--store-relay", "on", kScripts + "all_reduce.py"},
            {{"PYTHON_EXEC", DDPRUN_TORCH_PYTHON}});
    };
    Process& first = start("0");
    Process& second = start("1");
    std::set<std::string> addresses;
    for (Process* node : {&first, &second}) {
        CHECK(node->wait_exit() == 0);
        for (const std::string attempt : {"0", "1"}) {
            const std::string line =
                node->wait_for_line("^sum 6 of 4 attempt=" + attempt + " at=127.0.0.1:");
            CHECK(node->count_lines("^" + line + "$") == 2);
            addresses.insert(line.substr(line.find("at=") + 3));
        }
        CHECK(node->count_lines("^calls of others: False$") == 4);
        CHECK(node->text().find("relay:") == std::string::npos);
    }
    // Each node has its own, and another one in each generation; no relay answers there any more.
    CHECK(addresses.size() == 4);
    CHECK(addresses.count(port.endpoint()) == 0);
    for (const std::string& address : addresses) {
        CHECK_FALSE(is_answered(port_of(address)));
    }
    cluster.wait_all_gone();
}

TEST_CASE("who may not use the workers' store is named on the first node's console") {
    const std::string store = GENERATE("agent", "daemon");
    Cluster cluster;
    const Cluster::Daemon daemon = cluster.start_daemon();
    Job job;
    job.endpoint = daemon.endpoint;
    job.flags = {"--store", store};
    job.script = {"--print", "--variable", "MASTER_PORT", "--wait-for-file", cluster.dir() / "end"};
    Process& first = start_node(cluster, job, {"--node-rank", "0"});
    Process& second = start_node(cluster, job, {"--node-rank", "1"});
    const std::string line = first.wait_for_line("^MASTER_PORT=");
    CHECK(second.wait_for_line("^MASTER_PORT=") == line);
    const auto port = static_cast<std::uint16_t>(std::stoi(line.substr(line.find('=') + 1)));
    CHECK((port == port_of(daemon.endpoint)) == (store == "daemon"));
    StoreClientSocket stranger("127.0.0.1", port, "127.0.0.2");
    stranger.send(ddprun::rdzv::store_test::validate());
    CHECK(stranger.receive_all().empty());
    first.wait_for_line(
        "^ddprun: store: refused a client from 127.0.0.2: it is not the address of a node of this "
        "generation; if it belongs to the job .*, start with --store-admit any$");
    StoreClientSocket member("127.0.0.1", port);
    member.send(ddprun::rdzv::store_test::validate() + ddprun::rdzv::store_test::ping(7));
    CHECK(member.receive(4) == ddprun::rdzv::store_test::nonce(7));
    touch(cluster.dir() / "end");
    CHECK(first.wait_exit() == 0);
    CHECK(second.wait_exit() == 0);
    CHECK(second.text().find("refused a client") == std::string::npos);
    stop(cluster, daemon);
}

TEST_CASE(
    "a rendezvous that is killed comes back with an empty store, and nothing restarts for it") {
    namespace wire = ddprun::rdzv::store_test;
    Cluster cluster;
    const FreePort port;
    Job job;
    job.endpoint = port.endpoint();
    job.flags = {"--store", "daemon", "--max-restarts", "1"};
    job.script = {"--print",
                  "--wait-for-file",
                  cluster.dir() / "go",
                  "--when-generation",
                  "1",
                  "--when-rank",
                  "1",
                  "--exit-code",
                  "17"};
    Process& first = start_node(cluster, job, {"--node-rank", "0"});
    Process& second = start_node(cluster, job, {"--node-rank", "1"});
    first.wait_for_line(place_in(1));
    second.wait_for_line(place_in(1));
    StoreClientSocket before("127.0.0.1", port.port());
    before.send(wire::validate() + wire::ping(7) + wire::set("k", "1"));
    CHECK(before.receive(4) == wire::nonce(7));
    const pid_t daemon = Cluster::daemon_at(port.port());
    REQUIRE(daemon > 0);
    const ddprun::UniqueFd watched = Cluster::watch(daemon);
    REQUIRE(::kill(daemon, SIGKILL) == 0);
    cluster.wait_gone(watched);
    CHECK(before.receive_all().empty());
    bool is_back = false;
    while (!is_back) {
        Process& asking = cluster.start({.argv = {Cluster::program("ddpctl"), "status", "--json",
                                                  "--rdzv-endpoint", job.endpoint}});
        asking.wait_exit();
        const std::string connected = "\"is_connected\":true";
        const std::size_t one = asking.out().find(connected);
        is_back =
            one != std::string::npos && asking.out().find(connected, one + 1) != std::string::npos;
    }
    CHECK(Cluster::daemon_at(port.port()) != daemon);
    StoreClientSocket after("127.0.0.1", port.port());
    after.send(wire::validate() + wire::opcode(ddprun::rdzv::StoreOpcode::GetNumKeys));
    CHECK(after.receive(8) == wire::number(0));
    touch(cluster.dir() / "go");
    for (Process* node : {&first, &second}) {
        CHECK(node->wait_exit() == 0);
        CHECK(node->count_lines("^worker .* port=" + std::to_string(port.port()) + " ") == 2);
    }
    cluster.wait_all_gone();
}
