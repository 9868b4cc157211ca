// The room in memory, of a made-up machine.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/os/read_memory_room.hpp"
#include "tests/support/catch.hpp"

using namespace ddprun;

namespace {

constexpr std::uint64_t kMebibyte = std::uint64_t{1} << 20;

class Machine {
public:
    Machine() {
        std::string name = std::filesystem::temp_directory_path() / "ddprun-room-XXXXXX";
        REQUIRE(mkdtemp(name.data()) != nullptr);
        root_ = name;
        write("/proc/meminfo",
              "MemTotal:        8192000 kB\nMemFree:          102400 kB\n"
              "MemAvailable:    4096000 kB\n");
    }
    ~Machine() { std::filesystem::remove_all(root_); }
    Machine(const Machine&) = delete;
    Machine& operator=(const Machine&) = delete;

    void write(const std::string& path, const std::string& text) const {
        std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
        std::ofstream(root_ + path) << text;
    }
    [[nodiscard]] MemoryRoom room() const {
        const auto room = read_memory_room(root_);
        REQUIRE(room);
        return *room;
    }
    [[nodiscard]] const std::string& root() const { return root_; }

private:
    std::string root_;
};

}  // namespace

TEST_CASE("memory is the machine's where no cgroup has a limit") {
    const Machine machine;
    CHECK(machine.room().total == 8000 * kMebibyte);
    CHECK(machine.room().free == 4000 * kMebibyte);
    machine.write("/proc/self/cgroup", "4:memory:/a\n0::/\n");
    CHECK(own_memory_cgroup(machine.root()) == machine.root() + "/sys/fs/cgroup");
    machine.write("/proc/self/cgroup", "0::/a/b\n");
    machine.write("/sys/fs/cgroup/a/memory.max", "max\n");
    machine.write("/sys/fs/cgroup/a/memory.current", "1000\n");
    CHECK(machine.room().free == 4000 * kMebibyte);
    CHECK_FALSE(read_memory_room("/nowhere/at/all"));
}

TEST_CASE("the tightest limit of a cgroup and those above it counts, without files that go") {
    const Machine machine;
    machine.write("/proc/self/cgroup", "0::/a/b\n");
    machine.write("/sys/fs/cgroup/memory.max", std::to_string(2000 * kMebibyte) + "\n");
    machine.write("/sys/fs/cgroup/memory.current", std::to_string(1000 * kMebibyte) + "\n");
    machine.write("/sys/fs/cgroup/a/b/memory.max", std::to_string(3000 * kMebibyte) + "\n");
    machine.write("/sys/fs/cgroup/a/b/memory.current", std::to_string(2900 * kMebibyte) + "\n");
    machine.write("/sys/fs/cgroup/a/b/memory.stat",
                  "anon 5\ninactive_file " + std::to_string(400 * kMebibyte) + "\n");
    CHECK(machine.room().total == 2000 * kMebibyte);
    CHECK(machine.room().free == 500 * kMebibyte);
}
