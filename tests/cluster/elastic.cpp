// Groups that shrink, grow, and replace what they lose.

#include <signal.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/cluster/nodes.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun::test;

namespace {

/// A job whose workers run until the file `end` exists, and leave at once when they are told.
Job endless_job(const Cluster& cluster, const FreePort& port, const std::string& nnodes) {
    Job job;
    job.nnodes = nnodes;
    job.endpoint = port.endpoint();
    job.script = {"--exit-on-signal",   "15", "0", "--print", "--wait-for-file",
                  cluster.dir() / "end"};
    return job;
}

std::string world_in(int world, int generation) {
    return "^worker .* world=" + std::to_string(world) +
           " .* generation=" + std::to_string(generation) + " restarts=0 ";
}

void finish(Cluster& cluster, const std::vector<Process*>& nodes) {
    touch(cluster.dir() / "end");
    for (Process* node : nodes) {
        CHECK(node->wait_exit() == 0);
    }
    cluster.wait_all_gone();
}

}  // namespace

TEST_CASE("a late node makes the group grow without costing a restart") {
    Cluster cluster;
    const FreePort port;
    const Job job = endless_job(cluster, port, "1:3");
    Process& a = start_node(cluster, job);
    a.wait_for_line(world_in(1, 1));
    Process& b = start_node(cluster, job);
    a.wait_for_line(world_in(2, 2));
    b.wait_for_line(world_in(2, 2));
    finish(cluster, {&a, &b});
}

TEST_CASE("a killed node leaves the group smaller, and its return makes it whole") {
    Cluster cluster;
    const FreePort port;
    Job job = endless_job(cluster, port, "1:2");
    job.slots = 2;
    // The first alone, so that it is known which of them owns the daemon.
    Process& a = start_node(cluster, job);
    a.wait_for_lines(world_in(2, 1), 2);
    Process& b = start_node(cluster, job);
    a.wait_for_lines(world_in(4, 2), 2);
    b.wait_for_lines(world_in(4, 2), 2);
    const bool is_head_killed = GENERATE(false, true);
    Process& killed = is_head_killed ? a : b;
    Process& survivor = is_head_killed ? b : a;
    const ddprun::UniqueFd worker =
        Cluster::watch(field(killed.wait_for_line(world_in(4, 2)), "pid"));
    killed.signal(SIGKILL);
    cluster.wait_gone(worker);
    survivor.wait_for_lines(world_in(2, 3), 2);
    Process& back = start_node(cluster, job);
    survivor.wait_for_lines(world_in(4, 4), 2);
    back.wait_for_lines(world_in(4, 4), 2);
    finish(cluster, {&survivor, &back});
}

TEST_CASE("a node beyond the maximum is a spare, and takes the place of one that is lost") {
    Cluster cluster;
    const FreePort port;
    const Job job = endless_job(cluster, port, "2");
    Process& a = start_node(cluster, job);
    Process& b = start_node(cluster, job);
    a.wait_for_line(world_in(2, 1));
    const std::string lost = b.wait_for_line(world_in(2, 1));
    Process& spare = start_node(cluster, job);
    spare.wait_for_line("spare");
    CHECK(spare.count_lines("^worker ") == 0);
    b.signal(SIGKILL);
    a.wait_for_line(world_in(2, 2));
    const std::string promoted = spare.wait_for_line(world_in(2, 2));
    CHECK(field(promoted, "rank") == field(lost, "rank"));
    finish(cluster, {&a, &spare});
}

TEST_CASE("with sizes 2,4 of three nodes two run, four when one more comes, two when one is lost") {
    Cluster cluster;
    const FreePort port;
    const Job job = endless_job(cluster, port, "2,4");
    const auto meant_for = [](int world, int generation, int target) {
        return "^worker .* world=" + std::to_string(world) +
               " .* generation=" + std::to_string(generation) +
               " .* target=" + std::to_string(target) + " ";
    };
    Process& a = start_node(cluster, job);
    Process& b = start_node(cluster, job);
    a.wait_for_line(meant_for(2, 1, 4));
    b.wait_for_line(meant_for(2, 1, 4));
    Process& c = start_node(cluster, job);
    c.wait_for_line(
        "generation 1 runs on 2 nodes; this node is a spare and takes over when one is "
        "lost; --nnodes 2,4 has no size of 3: with 1 node more it is 4");
    CHECK(c.count_lines("^worker ") == 0);
    Process& d = start_node(cluster, job);
    for (Process* node : {&a, &b, &c, &d}) {
        node->wait_for_line(meant_for(4, 2, 4));
    }
    // The last that came is the one left over.
    c.signal(SIGKILL);
    a.wait_for_line(meant_for(2, 3, 4));
    b.wait_for_line(meant_for(2, 3, 4));
    d.wait_for_line(
        "generation 3 runs on 2 nodes; this node is a spare and takes over when one is "
        "lost; --nnodes 2,4 has no size of 3: with 1 node more it is 4");
    CHECK(d.count_lines("^worker ") == 1);
    CHECK(d.count_lines("generation 3 runs on 2 nodes") == 1);
    finish(cluster, {&a, &b, &d});
}

TEST_CASE("a spare that was never needed ends with the job's code") {
    Cluster cluster;
    const FreePort port;
    const Job job = endless_job(cluster, port, "1");
    Process& a = start_node(cluster, job);
    a.wait_for_line(world_in(1, 1));
    Process& spare = start_node(cluster, job);
    spare.wait_for_line("spare");
    finish(cluster, {&a, &spare});
}

TEST_CASE("a node that falls silent is lost after its lease, and fenced when it returns") {
    Cluster cluster;
    const FreePort port;
    const Job job = endless_job(cluster, port, "1:3");
    Process& a = start_node(cluster, job);
    Process& b = start_node(cluster, job);
    Process& c = start_node(cluster, job);
    // All three nodes run together in the end, in whatever order they came.
    a.wait_for_line("^worker .* world=3 ");
    b.wait_for_line("^worker .* world=3 ");
    const std::string held = c.wait_for_line("^worker .* world=3 ");
    const int generation = field(held, "generation");
    const ddprun::UniqueFd zombie = Cluster::watch(field(held, "pid"));
    c.signal(SIGSTOP);
    a.wait_for_line(world_in(2, generation + 1));
    b.wait_for_line(world_in(2, generation + 1));
    c.signal(SIGCONT);
    cluster.wait_gone(zombie);
    a.wait_for_line(world_in(3, generation + 2));
    c.wait_for_line(world_in(3, generation + 2));
    finish(cluster, {&a, &b, &c});
}

TEST_CASE("a job that lacks nodes says which, and gives up after the join timeout") {
    Cluster cluster;
    const FreePort port;
    Job job = endless_job(cluster, port, "2");
    job.flags = {"--rdzv-conf", "join_timeout=1"};
    Process& a = start_node(cluster, job);
    CHECK(a.wait_exit() == 71);
    CHECK(a.count_lines("gave up after 1 s") >= 1);
    cluster.wait_all_gone();
}
