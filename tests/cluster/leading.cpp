// Several daemons with real etcds: the one that leads dies or is stopped, an etcd dies. No worker
// may notice, and no generation may have two leaders' decisions.

#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "rendezvous/wire/endpoint.hpp"
#include "tests/cluster/nodes.hpp"
#include "tests/process/journal_etcds.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun::test;
using ddprun::rdzv::Endpoint;
using ddprun::rdzv::test::Etcds;
using ddprun::rdzv::test::has_etcd;

namespace {

/// Three daemons, two nodes with a worker each that go on until told; those of generation `last`
/// end by themselves.
class Running {
public:
    Running(Cluster& cluster, const Etcds& etcds, int last = 2) : cluster_(cluster) {
        std::string ha = "etcd://";
        for (const Endpoint& endpoint : etcds.endpoints()) {
            ha += (ha.back() == '/' ? "" : ",") + to_string(endpoint);
        }
        std::string endpoints;
        for (std::size_t i = 0; i < 3; ++i) {
            daemons_.push_back(
                &cluster.start({.argv = {Cluster::program("ddprun-rendezvous"), "--listen",
                                         ports_[i].endpoint(), "--ha", ha},
                                .env = {},
                                .cwd = {},
                                .name = fmt::format("daemon {}", i)}));
            endpoints += (i == 0 ? "" : ",") + ports_[i].endpoint();
        }
        for (Process* daemon : daemons_) {
            daemon->wait_for_line("leads");
        }
        Job job;
        job.endpoint = endpoints;
        job.flags = {"--max-restarts", "3"};
        job.script = {"--print", "--before-generation", std::to_string(last), "--wait-for-file",
                      go_};
        for (const char* name : {"a", "b"}) {
            nodes_.push_back(&start_node(cluster, job, {"--node-id", name}));
        }
        for (Process* node : nodes_) {
            lines_.push_back(node->wait_for_line(place_in(1)));
        }
    }

    /// The one that has said last that it leads, and lives and runs.
    [[nodiscard]] Process& leader() const {
        for (Process* daemon : daemons_) {
            if (daemon->is_running() &&
                daemon->count_lines("leads from now on") > daemon->count_lines("leads no more")) {
                return *daemon;
            }
        }
        FAIL("nobody leads");
        return *daemons_.front();
    }

    [[nodiscard]] std::string endpoint_of(const Process& daemon) const {
        for (std::size_t i = 0; i < daemons_.size(); ++i) {
            if (daemons_[i] == &daemon) {
                return ports_[i].endpoint();
            }
        }
        return {};
    }

    /// ddpctl asks that daemon for the status of its jobs.
    [[nodiscard]] Process& ask(const Process& daemon) const {
        return cluster_.start(
            {.argv = {Cluster::program("ddpctl"), "status", "--rdzv-endpoint", endpoint_of(daemon)},
             .env = {},
             .cwd = {},
             .name = "ddpctl"});
    }

    [[nodiscard]] const std::vector<Process*>& daemons() const { return daemons_; }
    [[nodiscard]] const std::vector<Process*>& nodes() const { return nodes_; }

    void wait_until_another_leads(const Process& than) const {
        cluster_.wait_until("another daemon leads and has both nodes", [&] {
            for (const Process* daemon : daemons_) {
                if (daemon != &than && daemon->is_running() &&
                    daemon->count_lines("node .* reconnected") >= 2) {
                    return true;
                }
            }
            return false;
        });
    }

    void fail_a_worker() const { REQUIRE(::kill(field(lines_[0], "pid"), SIGKILL) == 0); }

    /// All generations that the daemons have started, by all of them together.
    [[nodiscard]] std::size_t starts_of(int generation) const {
        std::size_t starts = 0;
        for (const Process* daemon : daemons_) {
            starts += daemon->count_lines(fmt::format("generation {} started", generation));
        }
        return starts;
    }

    void finish(int generations) {
        touch(go_);
        for (Process* node : nodes_) {
            CHECK(node->wait_exit() == 0);
            CHECK(node->count_lines("^worker ") == static_cast<std::size_t>(generations));
        }
        for (int generation = 1; generation <= generations; ++generation) {
            CHECK(starts_of(generation) <= 1);  // 0: decided by one, told by its successor
        }
        for (Process* daemon : daemons_) {
            if (daemon->is_running()) {
                daemon->signal(SIGTERM);
                CHECK(daemon->wait_exit() == 0);
            }
        }
    }

private:
    Cluster& cluster_;
    const FreePort ports_[3];
    std::string go_ = cluster_.dir() / "go";
    std::vector<Process*> daemons_;
    std::vector<Process*> nodes_;
    std::vector<std::string> lines_;
};

}  // namespace

TEST_CASE("the leading daemon is killed: another goes on, no worker restarts") {
    if (!has_etcd()) {
        return;
    }
    Cluster cluster;
    const Etcds etcds(1);
    Running running(cluster, etcds);
    Process& leader = running.leader();
    leader.signal(SIGKILL);
    leader.wait_exit();
    running.wait_until_another_leads(leader);
    // Meanwhile it kept agents instead of sending them to the dead one.
    CHECK(running.leader().count_lines("nobody leads") == 1);
    running.finish(1);
}

TEST_CASE("one of three etcds is killed: nothing happens, and then the leader is") {
    if (!has_etcd()) {
        return;
    }
    Cluster cluster;
    Etcds etcds(3);
    Running running(cluster, etcds);
    etcds.kill(etcds.leader());
    running.fail_a_worker();  // what must be durable still becomes so
    cluster.wait_until("generation 2", [&] { return running.starts_of(2) == 1; });
    Process& leader = running.leader();
    leader.signal(SIGKILL);
    leader.wait_exit();
    running.finish(2);
}

TEST_CASE("the leader is stopped past its lease: it decides nothing when it wakes") {
    if (!has_etcd()) {
        return;
    }
    Cluster cluster;
    const Etcds etcds(1);
    Running running(cluster, etcds);
    Process& leader = running.leader();
    leader.signal(SIGSTOP);
    running.wait_until_another_leads(leader);
    leader.signal(SIGCONT);
    leader.wait_for_line("leads no more");
    CHECK(leader.count_lines("was silent") == 0);
    CHECK(leader.count_lines("generation 1 stops") == 0);
    running.finish(1);
}

TEST_CASE("while etcd hangs nothing is decided; then once") {
    if (!has_etcd()) {
        return;
    }
    Cluster cluster;
    Etcds etcds(1);
    Running running(cluster, etcds);
    Process& leader = running.leader();
    etcds.pause(0);
    running.fail_a_worker();
    leader.wait_for_line("leads no more");
    for (const Process* node : running.nodes()) {
        CHECK(node->count_lines("generation 2") == 0);
    }
    etcds.resume(0);
    for (Process* node : running.nodes()) {
        node->wait_for_line(place_in(2));
    }
    running.finish(2);
}

// Writes fail while the lease goes on: no other daemon could lead any better.
TEST_CASE("etcd has no room: the job goes on without it, everybody is told, and it counts again") {
    if (!has_etcd()) {
        return;
    }
    Cluster cluster;
    const Etcds etcds(1, {"--quota-backend-bytes", "2000000"});
    Running running(cluster, etcds, 3);
    const Process& leader = running.leader();
    etcds.fill();
    running.fail_a_worker();
    for (Process* node : running.nodes()) {
        node->wait_for_line(place_in(2));
        node->wait_for_line("the job goes on but is no longer durable: .*alarm disarm");
    }
    running.leader().wait_for_line("the run goes on without high availability");
    Process& asking = running.ask(leader);
    CHECK(asking.wait_exit() == 0);
    CHECK(asking.out().find("not durable: ") != std::string::npos);
    CHECK(&running.leader() == &leader);
    etcds.make_room();
    for (Process* node : running.nodes()) {
        node->wait_for_line("the rendezvous's journal works again");
    }
    // The next leader finds the decisions that were made meanwhile.
    running.leader().signal(SIGKILL);
    running.wait_until_another_leads(leader);
    running.finish(2);
}

TEST_CASE("a record is too large for etcd: the job goes on and ends, with its verdict") {
    if (!has_etcd()) {
        return;
    }
    Cluster cluster;
    const Etcds etcds(1, {"--max-request-bytes", "1024"});
    Running running(cluster, etcds, 3);
    for (Process* node : running.nodes()) {
        node->wait_for_line("the job goes on but is no longer durable: .*--max-request-bytes");
    }
    running.fail_a_worker();
    for (Process* node : running.nodes()) {
        node->wait_for_line(place_in(2));
    }
    running.finish(2);
}

TEST_CASE("ddpctl may ask any of them: it is sent to the leader, or told that none leads") {
    if (!has_etcd()) {
        return;
    }
    Cluster cluster;
    Etcds etcds(1);
    Running running(cluster, etcds);
    for (const Process* daemon : running.daemons()) {
        Process& asking = running.ask(*daemon);
        CHECK(asking.wait_exit() == 0);
        CHECK(asking.out().find("job test: running for ") == 0);
        CHECK(asking.err().empty());
    }
    Process& leader = running.leader();
    Process& follower = *running.daemons()[running.daemons()[0] == &leader ? 1 : 0];
    leader.signal(SIGKILL);
    leader.wait_exit();
    Process& early = running.ask(follower);
    CHECK(early.wait_exit() == 69);
    CHECK(early.err().find(
              fmt::format("ddpctl: the rendezvous at {} ", running.endpoint_of(follower))) == 0);
    running.wait_until_another_leads(leader);
    Process& next = running.leader();
    etcds.kill(0);
    next.wait_for_line("leads no more");
    Process& nobody = running.ask(next);
    CHECK(nobody.wait_exit() == 69);
    CHECK(nobody.err() == fmt::format("ddpctl: the rendezvous at {} is one of several, and none of "
                                      "them leads at the moment; ask again\n",
                                      running.endpoint_of(next)));
    etcds.restart(0);
    running.finish(1);
}
