// What is asked of NVIDIA's library, with the library of plan_fake_nvml.cpp in its place: ctest
// sets LD_LIBRARY_PATH to its folder.

#include <cstdlib>
#include <string>

#include "launcher/plan/nvml.hpp"
#include "tests/support/catch.hpp"

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
