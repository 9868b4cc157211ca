#include "launcher/run/node_tasks.hpp"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <filesystem>

#include "base/os/unique_fd.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun;
using namespace ddprun::launcher;

namespace {

/// What a first task that is killed leaves: a name, and nobody behind it.
void leave_behind(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::copy(path.begin(), path.end(), std::begin(address.sun_path));
    const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) ==
            0);
}

}  // namespace

TEST_CASE("what a killed first task has left is removed by the next one of any job") {
    const test::TempDir folder;
    const std::string dead = folder / "tasks-dead";
    const std::string dying = folder / "tasks-dying.new";
    const std::string other = folder / "rendezvous-29400.log";
    leave_behind(dead);
    leave_behind(dying);
    leave_behind(other);
    Result<FirstTask> living = FirstTask::open(folder / "tasks-living");
    REQUIRE(living.has_value());
    CHECK_FALSE(std::filesystem::exists(dead));
    CHECK_FALSE(std::filesystem::exists(dying));
    CHECK(std::filesystem::exists(other));
    // The living one is neither removed nor disturbed: nobody is counted as one of its tasks.
    const Result<FirstTask> next = FirstTask::open(folder / "tasks-next");
    REQUIRE(next.has_value());
    CHECK(std::filesystem::exists(folder / "tasks-living"));
}
