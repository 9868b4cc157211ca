// Real daemons and agents with a network between them that is late, stands still, or ends.

#include <sys/stat.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/cluster/network_job.hpp"
#include "tests/cluster/nodes.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"
#include "tests/support/places.hpp"

using namespace ddprun::test;

namespace {

/// A program between nodes and the daemon that delays, stalls and cuts (network_proxy.hpp).
class Proxy {
public:
    Proxy(Cluster& cluster, const std::string& server) : fifo_(cluster.dir() / "orders") {
        REQUIRE(::mkfifo(fifo_.c_str(), 0600) == 0);
        const std::size_t colon = server.rfind(':');
        StartOptions options;
        options.argv = {bin_dir() + "/../tests/ddprun_network_proxy", "127.0.0.1",
                        server.substr(0, colon), server.substr(colon + 1), fifo_};
        process_ = &cluster.start(options);
        const std::string line = process_->wait_for_line("listening on ");
        endpoint_ = line.substr(line.rfind(' ') + 1);
    }

    [[nodiscard]] const std::string& endpoint() const { return endpoint_; }

    /// Returns when it is done.
    void order(const std::string& text) {
        const std::size_t from = process_->line_count();
        write_file(fifo_, text + "\n");
        process_->wait_for_line("^did " + text + "$", from);
    }

    [[nodiscard]] Process& process() { return *process_; }

private:
    std::string fifo_;
    Process* process_ = nullptr;
    std::string endpoint_;
};

}  // namespace

TEST_CASE("a network that is late or stands still for a third of the lease costs nobody's place") {
    const std::string fault = GENERATE(as<std::string>{}, "random-stalls 333", "delay 300");
    Cluster cluster;
    const Cluster::Daemon daemon = cluster.start_daemon();
    Proxy proxy(cluster, daemon.endpoint);
    proxy.order(fault);
    Job job;
    job.nnodes = "3";
    job.endpoint = proxy.endpoint();
    job.script = {"--exit-on-signal",   "15", "0", "--print", "--wait-for-file",
                  cluster.dir() / "end"};
    std::vector<Process*> nodes;
    for (int i = 0; i < 3; ++i) {
        nodes.push_back(&start_node(cluster, job));
    }
    for (Process* node : nodes) {
        node->wait_for_line(world_in(3, 1));
    }
    proxy.order("random-stalls 333");
    proxy.process().wait_for_line("^stalled 64 times");
    finish(cluster, nodes);
    CHECK(daemon.process.count_lines("was silent for|cut off|fell silent") == 0);
    for (Process* node : nodes) {
        CHECK(node->count_lines(place_in(2)) == 0);
    }
}

TEST_CASE("a connection that is open and silent is found out, in whichever direction it is dead") {
    const std::string fault = GENERATE(as<std::string>{}, "stall", "stall-up", "stall-down", "cut");
    Cluster cluster;
    const Cluster::Daemon daemon = cluster.start_daemon();
    Proxy proxy(cluster, daemon.endpoint);
    Job job = watched_job(cluster, daemon.endpoint);
    std::vector<Process*> nodes = {&start_node(cluster, job), &start_node(cluster, job)};
    nodes[0]->wait_for_line(world_in(2, 1));
    nodes[1]->wait_for_line(world_in(2, 1));
    job.endpoint = proxy.endpoint();
    nodes.push_back(&start_node(cluster, job));
    live_without(
        daemon.process, cluster, nodes, [&] { proxy.order(fault); }, [&] { proxy.order("heal"); });
    finish(cluster, nodes);
}
