// ddprun-readahead has files read into memory that no process has opened. Method: files that the
// kernel has let go of, and its own account of what it has in memory.

#include <poll.h>
#include <sys/stat.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "agent/read_ahead/files_ahead.hpp"
#include "base/read_ahead_limits.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"
#include "tests/support/page_cache.hpp"
#include "worker_runtime/checkpoint/publishing.hpp"

using namespace ddprun;
using namespace ddprun::test;
namespace fs = std::filesystem;

namespace {

/// More than any disk's window: one request to the kernel would not read it all.
constexpr std::size_t kLargeBytes = std::size_t{24} << 20;

using Paths = std::vector<std::string>;

std::string write_checkpoint(const std::string& dir, std::int64_t step, std::size_t bytes = 64) {
    const std::string data(bytes, 'x');
    const worker::TensorView tensor{.name = "weight",
                                    .dtype = "U8",
                                    .shape = {static_cast<std::int64_t>(bytes)},
                                    .bytes = std::as_bytes(std::span(data.data(), bytes))};
    const Result<std::string> path =
        worker::publish_checkpoint(dir, {.step = step}, {tensor}, {.keep = 9});
    REQUIRE(path);
    return *path;
}

Paths ahead(const std::string& place) {
    return agent::files_ahead(place, ReadAheadLimits());
}

/// So many seconds after a moment that is after all that the test writes.
void set_changed(const std::string& path, int seconds) {
    fs::last_write_time(path, fs::file_time_type(std::chrono::seconds(seconds)));
}

/// Runs the program on `places`; its exit code.
int run_program(const Paths& places) {
    Cluster cluster;
    Paths argv = {Cluster::program("ddprun-readahead")};
    argv.insert(argv.end(), places.begin(), places.end());
    Process& program = cluster.start({.argv = argv});
    const int exit_code = program.wait_exit();
    CHECK(program.text().empty());
    return exit_code;
}

/// Until the kernel has read what it was asked for; the test's own time limit ends it.
void wait_until_in_memory(const std::string& path) {
    while (share_in_memory(path) < 1) {
        ::poll(nullptr, 0, 1);
    }
}

}  // namespace

TEST_CASE("of the runtime's checkpoints the newest complete one is read ahead, in reading order") {
    const TempDir dir;
    const std::string first = write_checkpoint(dir.path(), 1);
    const std::string second = write_checkpoint(dir.path(), 2);
    const std::string torn = write_checkpoint(dir.path(), 3);
    const std::string model = "/model-00001-of-00001.safetensors";
    fs::resize_file(torn + model, 10);
    CHECK(ahead(dir.path()) == Paths{second + "/manifest.json", second + model});
    fs::remove(second + "/manifest.json");
    CHECK(ahead(dir.path()) == Paths{first + "/manifest.json", first + model});
    // A pipe in the place of a file is not waited for.
    fs::remove(first + model);
    REQUIRE(::mkfifo((first + model).c_str(), 0600) == 0);
    CHECK(ahead(dir.path()).empty());
}

TEST_CASE("a file is read ahead itself, and of a folder the newest that looks like a checkpoint") {
    const TempDir dir;
    write_file(dir / "epoch-1.pt", "1");
    write_file(dir / "epoch-2.pt", "2");
    set_changed(dir / "epoch-2.pt", 1000);
    set_changed(dir / "epoch-1.pt", 2000);
    CHECK(ahead(dir / "epoch-2.pt") == Paths{dir / "epoch-2.pt"});
    CHECK(ahead(dir.path()) == Paths{dir / "epoch-1.pt"});
    const std::string newest = dir / "checkpoint-7";
    fs::create_directories(newest + "/shards/deep/deeper");
    for (const char* name :
         {"/b.bin", "/a.json", "/shards/0.distcp", "/shards/deep/1", "/shards/deep/deeper/not"}) {
        write_file(newest + name, "x");
    }
    fs::create_symlink("/etc/hostname", newest + "/link");
    REQUIRE(::mkfifo((newest + "/pipe").c_str(), 0600) == 0);
    set_changed(newest, 3000);
    CHECK(ahead(dir.path()) == Paths{newest + "/a.json", newest + "/b.bin",
                                     newest + "/shards/0.distcp", newest + "/shards/deep/1"});
    ReadAheadLimits few;
    few.read_ahead_files_max = 3;
    CHECK(agent::files_ahead(dir.path(), few).size() == 3);
}

TEST_CASE("where there is no checkpoint nothing is read ahead, and nobody waits") {
    const TempDir dir;
    CHECK(ahead(dir.path()).empty());
    CHECK(ahead(dir / "missing").empty());
    REQUIRE(::mkfifo((dir / "pipe").c_str(), 0600) == 0);
    CHECK(ahead(dir / "pipe").empty());
    CHECK(ahead("/dev/null").empty());
    const ReadAheadLimits limits;
    CHECK(agent::read_ahead(dir / "pipe", 1000, limits) == 0);
    CHECK(agent::read_ahead("/dev/zero", 1000, limits) == 0);
    CHECK(agent::read_ahead(dir / "missing", 1000, limits) == 0);
    write_file(dir / "secret.pt", "x");
    fs::permissions(dir / "secret.pt", fs::perms::none);
    CHECK(run_program({dir / "pipe", "/dev/zero", dir / "missing", dir / "secret.pt", "", "-x"}) ==
          0);
}

TEST_CASE("all of a large checkpoint is in memory afterwards, though nobody has opened it") {
    const TempDir dir;
    const std::string model =
        write_checkpoint(dir.path(), 8, kLargeBytes) + "/model-00001-of-00001.safetensors";
    write_file(dir / "other.pt", std::string(kLargeBytes, 'y'));
    if (!evict(model) || !evict(dir / "other.pt")) {
        WARN("SKIPPED: the kernel does not let go of files in " << dir.path() << " (tmpfs?)");
        return;
    }
    CHECK(run_program({dir.path()}) == 0);
    wait_until_in_memory(model);
    CHECK(share_in_memory(dir / "other.pt") == 0);
}

TEST_CASE("no more is read ahead than is allowed") {
    const TempDir dir;
    const std::string path = dir / "model.pt";
    write_file(path, std::string(kLargeBytes, 'y'));
    const ReadAheadLimits limits;
    CHECK(agent::read_ahead(path, 0, limits) == 0);
    CHECK(agent::read_ahead(path, 1000, limits) == 1000);
    CHECK(agent::read_ahead(path, kLargeBytes * 2, limits) == kLargeBytes);
}
