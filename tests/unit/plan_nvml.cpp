// ddprun asks NVIDIA's library, with the library of plan_fake_nvml.cpp in its place: ctest sets
// LD_LIBRARY_PATH to its folder.

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "launcher/machine/nvml.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun::launcher;

namespace {

bool has_fake_driver() {
    const char* path = std::getenv("LD_LIBRARY_PATH");
    if (path == nullptr || std::string(path).find("fake_nvml") == std::string::npos) {
        WARN("SKIPPED: ctest runs this with a made-up driver");
        return false;
    }
    return true;
}

/// Says how the made-up driver's GPUs are used, as long as it lives.
class FakeUse {
public:
    explicit FakeUse(const std::string& text) {
        write(text);
        REQUIRE(::setenv("DDPRUN_FAKE_GPU_USE", path_.c_str(), 1) == 0);
    }
    ~FakeUse() { ::unsetenv("DDPRUN_FAKE_GPU_USE"); }
    FakeUse(const FakeUse&) = delete;
    FakeUse& operator=(const FakeUse&) = delete;

    void write(const std::string& text) const { ddprun::test::write_file(path_, text); }

private:
    const ddprun::test::TempDir folder_;
    const std::string path_ = folder_ / "use";
};

}  // namespace

TEST_CASE("GPUs are told with their names, places and divisions, as far as the driver knows") {
    if (!has_fake_driver()) {
        return;
    }
    const auto gpus = gpus_of_nvml();
    REQUIRE(gpus.has_value());
    REQUIRE(gpus->size() == 3);
    CHECK((*gpus)[0] == Gpu{"GPU-11", "0001:3b:00.0", {}});
    CHECK((*gpus)[1] == Gpu{"GPU-22", "0001:af:00.0", {"MIG-1", "MIG-2"}});
    CHECK((*gpus)[2] == Gpu{});
}

TEST_CASE("how GPUs are is told as far as the driver knows") {
    if (!has_fake_driver()) {
        return;
    }
    const auto gpus = gpu_health_of_nvml();
    REQUIRE(gpus.has_value());
    REQUIRE(gpus->size() == 3);
    const std::uint64_t all = std::uint64_t{80} << 30;
    const std::uint64_t used = std::uint64_t{20} << 30;
    CHECK((*gpus)[0] == GpuHealth{"GPU-11", {}, false, true, all, used});
    CHECK((*gpus)[1] == GpuHealth{"GPU-22", 7, true, false, all, used});
    CHECK((*gpus)[2] == GpuHealth{});
}

TEST_CASE("processes that use a GPU are told by their use of its memory, where the driver tells") {
    if (!has_fake_driver()) {
        return;
    }
    std::string many;
    for (int pid = 1; pid <= 3000; ++pid) {
        many += "process 0 " + std::to_string(pid) + (pid == 2999 ? " 1 500\n" : " 0 500\n");
    }
    const FakeUse use(many + "process 1 7 50 500\nmemory 1 50\n");
    const auto now = std::chrono::duration_cast<std::chrono::microseconds>(
        std::chrono::system_clock::now().time_since_epoch());
    const auto since = static_cast<std::uint64_t>(now.count() - 60'000'000);
    const auto gpus = gpu_use_of_nvml(since);
    REQUIRE(gpus.has_value());
    REQUIRE(gpus->size() == 3);
    CHECK((*gpus)[0] == GpuUse{std::vector<int>{2999}, false});
    CHECK((*gpus)[1] == GpuUse{std::vector<int>{7}, true});
    CHECK((*gpus)[2] == GpuUse{std::nullopt, false});
    CHECK(gpu_use_of_nvml(static_cast<std::uint64_t>(now.count()))->at(0).pids->empty());
    use.write("untold\nprocess 0 7 50 0\nmemory 0 50\n");
    CHECK(gpu_use_of_nvml(since)->at(0) == GpuUse{std::nullopt, true});
}

TEST_CASE("memory in use is told, and who holds it where that is asked for") {
    if (!has_fake_driver()) {
        return;
    }
    std::string many;
    for (int pid = 1; pid <= 100; ++pid) {
        many += "holder 1 " + std::to_string(pid) + (pid == 7 ? " -\n" : " 1024\n");
    }
    const FakeUse use(many + "held 1 5 1 1000\nholder 0 7 1\n");
    std::vector<std::uint64_t> asked;
    const auto gpus = gpu_memory_of_nvml([&asked](unsigned number, std::uint64_t bytes) {
        asked.push_back(bytes);
        return number == 1;
    });
    const std::uint64_t used = std::uint64_t{20} << 30;
    CHECK(asked == std::vector<std::uint64_t>{used, used + 5});
    REQUIRE(gpus.has_value());
    REQUIRE(gpus->size() == 3);
    CHECK((*gpus)[0] == GpuMemoryUse{used, {}});
    CHECK((*gpus)[1].bytes == used + 5);
    REQUIRE((*gpus)[1].holders.size() == 100);
    CHECK((*gpus)[1].holders[6] == GpuHolder{7, std::nullopt});
    CHECK((*gpus)[1].holders[99] == GpuHolder{100, 1024});
    CHECK((*gpus)[2] == GpuMemoryUse{});
}
