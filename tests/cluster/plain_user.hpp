#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "tests/cluster/nodes.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"
#include "tests/support/places.hpp"

namespace ddprun::test {

// A user that no machine knows: it has no home, no group and no limit raised for it.
inline constexpr unsigned kNobodysUser = 64123;

/// Starts ddprun's programs as a user without privileges.
class PlainUser {
public:
    explicit PlainUser(Cluster& cluster) : cluster_(cluster), is_root_(::geteuid() == 0) {
        bin_ = is_root_ ? cluster.dir() / "bin" : bin_dir();
        worker_ = is_root_ ? bin_ + "/ddprun_test_worker" : Cluster::worker();
        if (!is_root_) {
            return;
        }
        // The build may lie where no other user may read.
        std::filesystem::create_directory(bin_);
        for (const char* program : {"ddprun", "ddprun-keeper", "ddprun-rendezvous", "ddpctl"}) {
            std::filesystem::copy_file(bin_dir() + "/" + program, bin_ + "/" + program);
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

    [[nodiscard]] const std::string& worker() const { return worker_; }
    [[nodiscard]] unsigned id() const { return is_root_ ? kNobodysUser : ::geteuid(); }

private:
    Cluster& cluster_;
    bool is_root_;
    std::string bin_;
    std::string worker_;
};

}  // namespace ddprun::test
