// Goal: nothing that ddprun does needs a privilege. Method: a root that runs this test drops to a
// user without any, with programs and folders of its own; anybody else runs it as is.

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "tests/cluster/nodes.hpp"
#include "tests/cluster/proc.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun::test;

namespace {

// A user that no machine knows: it has no home, no group and no limit raised for it.
constexpr unsigned kNobodysUser = 64123;

/// Starts ddprun's programs as a user without privileges.
class PlainUser {
public:
    explicit PlainUser(Cluster& cluster) : cluster_(cluster), is_root_(::geteuid() == 0) {
        bin_ = is_root_ ? cluster.dir() / "bin" : DDPRUN_BIN_DIR;
        worker_ = is_root_ ? bin_ + "/ddprun_test_worker" : Cluster::worker();
        if (!is_root_) {
            return;
        }
        // The build may lie where nobody else may look.
        std::filesystem::create_directory(bin_);
        for (const char* program : {"ddprun", "ddprun-keeper", "ddprun-rendezvous", "ddpctl"}) {
            std::filesystem::copy_file(std::string(DDPRUN_BIN_DIR "/") + program,
                                       bin_ + "/" + program);
        }
        std::filesystem::copy_file(Cluster::worker(), worker_);
        REQUIRE(::chown(cluster.dir().path().c_str(), kNobodysUser, kNobodysUser) == 0);
        for (const auto& entry :
             std::filesystem::recursive_directory_iterator(cluster.dir().path())) {
            REQUIRE(::chown(entry.path().c_str(), kNobodysUser, kNobodysUser) == 0);
        }
    }
    ~PlainUser() {
        if (is_root_) {
            std::error_code ignored;
            std::filesystem::remove_all("/var/tmp/ddprun-" + std::to_string(kNobodysUser), ignored);
        }
    }
    PlainUser(const PlainUser&) = delete;
    PlainUser& operator=(const PlainUser&) = delete;

    Process& start(const std::string& program, const std::vector<std::string>& args) {
        StartOptions options;
        options.name = program;
        if (is_root_) {
            const std::string user = std::to_string(kNobodysUser);
            options.argv = {"/usr/bin/setpriv", "--reuid",    user,   "--regid",        user,
                            "--clear-groups",   "--inh-caps", "-all", "--no-new-privs", "--"};
        }
        options.argv.push_back(bin_ + "/" + program);
        options.argv.insert(options.argv.end(), args.begin(), args.end());
        return cluster_.start(options);
    }

    Process& start_node(Job job) {
        std::vector<std::string> args = node_args(job);
        std::replace(args.begin(), args.end(), Cluster::worker(), worker_);
        args.insert(args.begin(), {"--log-dir", cluster_.dir() / "logs"});
        return start("ddprun", args);
    }

    [[nodiscard]] unsigned id() const { return is_root_ ? kNobodysUser : ::geteuid(); }

private:
    Cluster& cluster_;
    bool is_root_;
    std::string bin_;
    std::string worker_;
};

void check_all_belong_to(unsigned user) {
    for (const pid_t pid : descendants()) {
        struct stat status {};
        if (::stat(("/proc/" + std::to_string(pid)).c_str(), &status) == 0) {
            CHECK(status.st_uid == user);
        }
    }
}

pid_t daemon_of(const std::vector<pid_t>& pids) {
    for (const pid_t pid : pids) {
        if (read_file("/proc/" + std::to_string(pid) + "/comm") == "ddprun-rendezvo\n") {
            return pid;
        }
    }
    return -1;
}

}  // namespace

TEST_CASE("a user without privileges runs a job through a failure and the death of its daemon") {
    Cluster cluster;
    PlainUser user(cluster);
    const FreePort port;
    Job job;
    job.endpoint = port.endpoint();
    job.flags = {"--max-restarts", "1"};
    job.script = {
        "--print",     "--when-rank", "1",        "--when-generation", "1",
        "--exit-code", "3",           "--always", "--wait-for-file",   cluster.dir() / "end"};
    Process& a = user.start_node(job);
    Process& b = user.start_node(job);
    a.wait_for_line(place_in(2));
    b.wait_for_line(place_in(2));
    check_all_belong_to(user.id());

    // The head starts another daemon, and the workers never notice.
    const pid_t daemon = daemon_of(descendants());
    REQUIRE(daemon > 0);
    const ddprun::UniqueFd watched = Cluster::watch(daemon);
    REQUIRE(::kill(daemon, SIGKILL) == 0);
    cluster.wait_gone(watched);
    for (bool is_there = false; !is_there;) {
        Process& asking = user.start("ddpctl", {"status", "--rdzv-endpoint", job.endpoint});
        is_there = asking.wait_exit() == 0;
    }
    CHECK(daemon_of(descendants()) > 0);

    touch(cluster.dir() / "end");
    CHECK(a.wait_exit() == 0);
    CHECK(b.wait_exit() == 0);
    CHECK(a.count_lines(place_in(3)) + b.count_lines(place_in(3)) == 0);
    cluster.wait_all_gone();
}

TEST_CASE("a user without privileges runs a job on one node") {
    Cluster cluster;
    PlainUser user(cluster);
    Process& node = user.start("ddprun", {"--log-dir", cluster.dir() / "logs", "--nproc-per-node",
                                          "2", "/bin/sh", "-c", "exit 0"});
    CHECK(node.wait_exit() == 0);
    cluster.wait_all_gone();
}
