// The newest checkpoint is read ahead once workers have failed, before the next ones open it.
// Method: a file that the kernel has let go of, which no worker ever reads; the worker of the next
// generation waits until the kernel says that all of it is in memory.

#include <sys/stat.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"
#include "tests/support/page_cache.hpp"

using namespace ddprun::test;

namespace {

constexpr std::size_t kBytes = std::size_t{24} << 20;  ///< more than a disk's window

/// Two workers of which rank 0 fails once; both have told `place`. The arguments that follow are
/// the next ones'.
std::vector<std::string> failing_once(const std::string& place) {
    return {"--nproc-per-node",
            "2",
            "--max-restarts",
            "1",
            Cluster::worker(),
            "--attach-page",
            "--tell-checkpoints",
            place,
            "--when-restart",
            "0",
            "--when-rank",
            "0",
            "--exit-code",
            "3",
            "--always",
            "--when-restart",
            "0",
            "--hang",
            "--always"};
}

}  // namespace

TEST_CASE("after a failure the newest checkpoint is in memory before anybody opens it") {
    Cluster cluster;
    const std::string folder = cluster.dir() / "checkpoints";
    std::filesystem::create_directory(folder);
    const std::string file = folder + "/epoch-3.pt";
    write_file(file, std::string(kBytes, 'x'));
    if (!evict(file)) {
        WARN("SKIPPED: the kernel does not let go of files in " << folder << " (tmpfs?)");
        return;
    }
    std::vector<std::string> args = failing_once(folder);
    args.insert(args.end(), {"--wait-until-in-memory", file, "--say", "in memory"});
    Process& node = cluster.start_ddprun(args);
    CHECK(node.wait_exit() == 0);
    CHECK(node.count_lines("^in memory$") == 2);
    CHECK(node.count_lines("read ahead") == 0);
    cluster.wait_all_gone();
}

TEST_CASE("places where nothing can be read ahead change nothing") {
    Cluster cluster;
    const std::string pipe = cluster.dir() / "pipe.pt";
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    const std::string wrong =
        GENERATE(as<std::string>(), "pipe", "/missing", "relative/path", "/dev/zero",
                 "/" + std::string(1019, 'x'), "/" + std::string(1020, 'x'));
    const std::string place = wrong == "pipe" ? pipe : wrong;
    std::vector<std::string> args = failing_once(place);
    args.insert(args.end(), {"--say", "second"});
    Process& node = cluster.start_ddprun(args);
    CHECK(node.wait_exit() == 0);
    CHECK(node.count_lines("^second$") == 2);
    CHECK(node.count_lines("read ahead") == 0);
    cluster.wait_all_gone();
}
