// The daemon dies and comes back, with its journal, without it, with a damaged one, on a full disk.
// No worker may notice. Each job has two nodes and workers that wait for a file.

#include <signal.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/cluster/nodes.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun::test;

namespace {

/// A lasting daemon on a fixed port, as a site runs it, with a journal; two nodes, and workers that
/// go on until told.
struct Running {
    explicit Running(Cluster& all, const std::string& state_folder)
        : cluster(all), state(state_folder), daemon(start_daemon(cluster, port, state)) {
        daemon->wait_for_line("^listening on ");
        Job job;
        job.endpoint = port.endpoint();
        job.flags = {"--max-restarts", "2"};
        job.script = {"--print", "--wait-for-file", go, "--exit-code", "0"};
        for (const char* name : {"a", "b"}) {
            nodes.push_back(&start_node(cluster, job, {"--node-id", name}));
        }
        for (Process* node : nodes) {
            node->wait_for_line(place_in(1));
        }
    }

    static Process* start_daemon(Cluster& cluster, const FreePort& port,
                                 const std::string& state_folder) {
        return &cluster.start({.argv = {Cluster::program("ddprun-rendezvous"), "--listen",
                                        port.endpoint(), "--state-dir", state_folder},
                               .env = {},
                               .cwd = {},
                               .name = "daemon"});
    }

    void kill_daemon() const {
        daemon->signal(SIGKILL);
        daemon->wait_exit();
    }

    void revive_daemon() {
        daemon = start_daemon(cluster, port, state);
        daemon->wait_for_line("^listening on ");
    }

    /// The job ends well, in the generation it began with.
    void finish() {
        touch(go);
        for (Process* node : nodes) {
            CHECK(node->wait_exit() == 0);
            CHECK(node->count_lines("^worker ") == 1);
            CHECK(node->count_lines("generation 2") == 0);
        }
        daemon->signal(SIGTERM);
        CHECK(daemon->wait_exit() == 0);
        cluster.wait_all_gone();
    }

    Cluster& cluster;
    const FreePort port;
    std::string state;
    std::string go = cluster.dir() / "go";
    Process* daemon;
    std::vector<Process*> nodes;
};

/// Two nodes whose workers wait for the file `go`, and the daemon that one of them has started.
struct HeadNodes {
    explicit HeadNodes(Cluster& cluster_) : cluster(cluster_) {
        job.endpoint = port.endpoint();
        job.script = {"--print", "--wait-for-file", go, "--exit-code", "0"};
        for (const char* name : {"a", "b"}) {
            nodes.push_back(&start_node(cluster, job, {"--node-id", name}));
        }
        for (Process* node : nodes) {
            node->wait_for_line(place_in(1));
        }
        daemon = Cluster::daemon_at(port.port());
        REQUIRE(daemon > 0);
        watched = Cluster::watch(daemon);
    }

    void kill_daemon() const {
        REQUIRE(::kill(daemon, SIGKILL) == 0);
        cluster.wait_gone(watched);
    }

    Cluster& cluster;
    const FreePort port;
    const std::string go = cluster.dir() / "go";
    Job job;
    std::vector<Process*> nodes;
    pid_t daemon = 0;
    ddprun::UniqueFd watched;
};

/// One thread of a process that stands still, like one that a disk keeps waiting; the others go on.
class HangingThread {
public:
    HangingThread(pid_t process, const std::string& name) {
        const std::string tasks = "/proc/" + std::to_string(process) + "/task/";
        for (const std::string& task : list_folder(tasks)) {
            if (read_file(tasks + task + "/comm") == name + "\n") {
                thread_ = static_cast<pid_t>(std::stol(task));
            }
        }
        REQUIRE(thread_ > 0);
        REQUIRE(::ptrace(PTRACE_SEIZE, thread_, nullptr, nullptr) == 0);
        REQUIRE(::ptrace(PTRACE_INTERRUPT, thread_, nullptr, nullptr) == 0);
        int status = 0;
        REQUIRE(::waitpid(thread_, &status, __WALL) == thread_);
    }
    ~HangingThread() { ::ptrace(PTRACE_DETACH, thread_, nullptr, nullptr); }
    HangingThread(const HangingThread&) = delete;
    HangingThread& operator=(const HangingThread&) = delete;

private:
    pid_t thread_ = 0;
};

}  // namespace

TEST_CASE("a daemon that is killed and started again goes on from its journal") {
    Cluster cluster;
    Running running(cluster, cluster.dir() / "state");
    running.kill_daemon();
    running.revive_daemon();
    running.daemon->wait_for_line("job test goes on from the journal: generation 1, 2 nodes");
    running.daemon->wait_for_lines("node .* reconnected", 2);
    running.finish();
}

TEST_CASE("it does so ten times in a row, and budgets are those of before") {
    Cluster cluster;
    const FreePort port;
    const std::string state = cluster.dir() / "state";
    Process* daemon = Running::start_daemon(cluster, port, state);
    daemon->wait_for_line("^listening on ");
    Job job;
    job.endpoint = port.endpoint();
    job.flags = {"--max-restarts", "1"};
    job.script = {"--print", "--hang"};
    Process& a = start_node(cluster, job, {"--node-id", "a"});
    Process& b = start_node(cluster, job, {"--node-id", "b"});
    const std::string first = a.wait_for_line(place_in(1));
    b.wait_for_line(place_in(1));
    REQUIRE(::kill(field(first, "pid"), SIGKILL) == 0);
    const std::string second = a.wait_for_line(place_in(2));
    b.wait_for_line(place_in(2));
    for (int i = 0; i < 10; ++i) {
        daemon->signal(SIGKILL);
        daemon->wait_exit();
        daemon = Running::start_daemon(cluster, port, state);
        // Daemons that die within milliseconds of their start, again and again, are held against
        // the journal: then it is set aside and the nodes are asked.
        cluster.wait_until("the daemon has both nodes", [&] {
            return daemon->count_lines("node .* reconnected") >= 2 ||
                   daemon->count_lines("goes on: 2 nodes came back") == 1;
        });
    }
    // The one restart was used by the first daemon.
    REQUIRE(::kill(field(second, "pid"), SIGKILL) == 0);
    CHECK(a.wait_exit() == 128 + SIGKILL);
    CHECK(b.wait_exit() == 128 + SIGKILL);
    CHECK(a.count_lines("^worker ") == 2);
    daemon->signal(SIGTERM);
    daemon->wait_exit();
    cluster.wait_all_gone();
}

TEST_CASE("without its journal it takes over what the nodes agree on") {
    Cluster cluster;
    Running running(cluster, cluster.dir() / "state");
    running.kill_daemon();
    std::filesystem::remove_all(running.state);
    running.revive_daemon();
    running.daemon->wait_for_line("generation 1 goes on: 2 nodes came back");
    running.finish();
}

TEST_CASE("a damaged journal is said, set aside, and the nodes are asked") {
    Cluster cluster;
    Running running(cluster, cluster.dir() / "state");
    running.kill_daemon();
    for (const std::string& name : list_folder(running.state)) {
        if (name.find("journal.db") != std::string::npos) {
            write_file(running.state + "/" + name, std::string(20000, 'x'));
        }
    }
    running.revive_daemon();
    running.daemon->wait_for_line("journal\\.db is damaged: .* it is kept as .*set-aside");
    running.daemon->wait_for_line("generation 1 goes on: 2 nodes came back");
    running.finish();
}

TEST_CASE("a node that died with the daemon is missed after a grace, and the rest forms again") {
    Cluster cluster;
    const FreePort port;
    const std::string state = cluster.dir() / "state";
    Process* daemon = Running::start_daemon(cluster, port, state);
    daemon->wait_for_line("^listening on ");
    Job job;
    job.endpoint = port.endpoint();
    job.nnodes = "1:2";
    job.flags = {"--rdzv-conf", "last_call_timeout=30"};
    job.script = {"--print", "--before-generation", "2", "--hang"};
    Process& a = start_node(cluster, job, {"--node-id", "a"});
    Process& b = start_node(cluster, job, {"--node-id", "b"});
    a.wait_for_line(place_in(1));
    b.wait_for_line(place_in(1));
    daemon->signal(SIGKILL);
    b.signal(SIGKILL);
    daemon->wait_exit();
    b.wait_exit();
    daemon = Running::start_daemon(cluster, port, state);
    CHECK(a.wait_exit() == 0);
    CHECK(a.count_lines("^worker .* world=1 .* generation=2 ") == 1);
    CHECK(daemon->count_lines("node .* was silent for .*") >= 1);
    daemon->signal(SIGTERM);
    daemon->wait_exit();
    cluster.wait_all_gone();
}

TEST_CASE("the head node's ddprun starts its daemon again, and it goes on") {
    Cluster cluster;
    const HeadNodes running(cluster);
    running.kill_daemon();
    // It says of two nodes that it has heard them.
    const std::string asked = running.port.endpoint();
    for (bool are_back = false; !are_back;) {
        Process& asking = cluster.start(
            {.argv = {Cluster::program("ddpctl"), "status", "--json", "--rdzv-endpoint", asked},
             .env = {},
             .cwd = {},
             .name = "ddpctl"});
        asking.wait_exit();
        const std::string connected = "\"is_connected\":true";
        const std::size_t first = asking.out().find(connected);
        are_back = first != std::string::npos &&
                   asking.out().find(connected, first + 1) != std::string::npos;
    }
    CHECK(Cluster::daemon_at(running.port.port()) != running.daemon);
    touch(running.go);
    for (Process* node : running.nodes) {
        CHECK(node->wait_exit() == 0);
        CHECK(node->count_lines("^worker ") == 1);
    }
    cluster.wait_all_gone();
    // All runs are over: nothing of them is kept.
    CHECK_FALSE(std::filesystem::exists(running.port.journal_folder()));
}

TEST_CASE(
    "what a head node's daemon kept stays when it dies, until the run that needs it is over") {
    Cluster cluster;
    const HeadNodes running(cluster);
    // The ddpruns that would start the next daemon die first.
    for (Process* node : running.nodes) {
        node->signal(SIGKILL);
        node->wait_exit();
    }
    running.kill_daemon();
    CHECK(std::filesystem::exists(running.port.journal_folder() + "/journal.db"));
    touch(running.go);
    std::vector<Process*> again;
    for (const char* name : {"a", "b"}) {
        again.push_back(&start_node(cluster, running.job, {"--node-id", name}));
    }
    for (Process* node : again) {
        CHECK(node->wait_exit() == 0);
    }
    cluster.wait_all_gone();
    CHECK_FALSE(std::filesystem::exists(running.port.journal_folder()));
}

TEST_CASE("when the disk hangs the job runs on, says that it is not durable, and when it is") {
    Cluster cluster;
    Running running(cluster, cluster.dir() / "state");
    const std::string line = running.nodes[0]->wait_for_line(place_in(1));
    {
        const HangingThread journal(running.daemon->pid(), "ddprun-journal");
        REQUIRE(::kill(field(line, "pid"), SIGKILL) == 0);
        for (Process* node : running.nodes) {
            node->wait_for_line(place_in(2));
            node->wait_for_line("no longer durable: the journal has not answered for 1000 ms");
        }
    }
    for (Process* node : running.nodes) {
        node->wait_for_line("the job is durable");
    }
    running.kill_daemon();
    running.revive_daemon();
    running.daemon->wait_for_line("goes on from the journal: generation 2, 2 nodes");
    running.daemon->wait_for_lines("node .* reconnected", 2);
    touch(running.go);
    for (Process* node : running.nodes) {
        CHECK(node->wait_exit() == 0);
        CHECK(node->count_lines("^worker ") == 2);
    }
    running.daemon->signal(SIGTERM);
    CHECK(running.daemon->wait_exit() == 0);
    cluster.wait_all_gone();
}

TEST_CASE("on a full disk the job runs on, says that it is not durable, and when it is") {
    Cluster cluster;
    const std::string disk = cluster.dir() / "disk";
    std::filesystem::create_directory(disk);
    if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=400k") != 0) {
        WARN("SKIPPED: a small disk needs the right to mount one (errno " << errno << ")");
        return;
    }
    {
        Running running(cluster, disk + "/state");
        // Nothing is left for a new record.
        std::FILE* filler = std::fopen((disk + "/filler").c_str(), "w");
        REQUIRE(filler != nullptr);
        const std::vector<char> block(4096, 'x');
        while (std::fwrite(block.data(), 1, block.size(), filler) == block.size() &&
               std::fflush(filler) == 0) {}
        std::fclose(filler);
        const std::string line = running.nodes[0]->wait_for_line(place_in(1));
        REQUIRE(::kill(field(line, "pid"), SIGKILL) == 0);
        for (Process* node : running.nodes) {
            node->wait_for_line(place_in(2));
            node->wait_for_line("no longer durable");
        }
        // Room again: nothing happens to the job, and it becomes durable by itself.
        std::filesystem::remove(disk + "/filler");
        for (Process* node : running.nodes) {
            node->wait_for_line("the job is durable");
        }
        running.kill_daemon();
        running.revive_daemon();
        running.daemon->wait_for_line("goes on from the journal: generation 2, 2 nodes");
        running.daemon->wait_for_lines("node .* reconnected", 2);
        touch(running.go);
        for (Process* node : running.nodes) {
            CHECK(node->wait_exit() == 0);
        }
        running.daemon->signal(SIGTERM);
        running.daemon->wait_exit();
    }
    cluster.wait_all_gone();
    CHECK(::umount2(disk.c_str(), MNT_DETACH) == 0);
}
