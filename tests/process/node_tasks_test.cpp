#include "launcher/run/node_tasks.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <thread>

#include "base/os/unique_fd.hpp"
#include "base/os/unix_address.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun;
using namespace ddprun::launcher;

namespace {

/// Leaves what a first task leaves that is killed: a name, and no process behind it.
void leave_behind(const std::string& path) {
    const Result<UnixAddress> address = UnixAddress::of(path);
    REQUIRE(address.has_value());
    const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(::bind(socket.get(), address->get(), address->size()) == 0);
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
    // The living one is neither removed nor disturbed: no process is counted as one of its tasks.
    const Result<FirstTask> next = FirstTask::open(folder / "tasks-next");
    REQUIRE(next.has_value());
    CHECK(std::filesystem::exists(folder / "tasks-living"));
}

TEST_CASE("the tasks of a node meet in a folder whose path is longer than a socket's may be") {
    const test::TempDir folder;
    const std::string far = folder / std::string(120, 'f');
    std::filesystem::create_directory(far);
    Result<FirstTask> first = FirstTask::open(far + "/tasks-first");
    REQUIRE(first.has_value());
    std::thread other([&far] {
        const Result<int> code = follow_first_task(far + "/tasks-first", Milliseconds(60'000),
                                                   Milliseconds(60'000), [] {});
        CHECK((code.has_value() && *code == 7));
    });
    first->end(7, 1, Milliseconds(60'000));
    other.join();
}

TEST_CASE("an address of a socket names a folder that is not there, and a name that is too long") {
    const test::TempDir folder;
    const Result<UnixAddress> nowhere = UnixAddress::of(folder / "none/socket");
    REQUIRE_FALSE(nowhere.has_value());
    CHECK(nowhere.error().code == ErrorCode::NotFound);
    const Result<UnixAddress> big = UnixAddress::of(folder / std::string(108, 's'));
    REQUIRE_FALSE(big.has_value());
    CHECK(big.error().code == ErrorCode::LimitExceeded);
}
