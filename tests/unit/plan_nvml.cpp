// What is asked of NVIDIA's library, with the library of plan_fake_nvml.cpp in its place: ctest
// sets LD_LIBRARY_PATH to its folder.

#include <cstdlib>
#include <string>

#include "launcher/plan/nvml.hpp"
#include "tests/support/catch.hpp"

using namespace ddprun::launcher;

TEST_CASE("GPUs are told with their names, places and divisions, as far as the driver knows") {
    const char* path = std::getenv("LD_LIBRARY_PATH");
    if (path == nullptr || std::string(path).find("fake_nvml") == std::string::npos) {
        WARN("SKIPPED: ctest runs this with a made-up driver");
        return;
    }
    const auto gpus = gpus_of_nvml();
    REQUIRE(gpus.has_value());
    REQUIRE(gpus->size() == 3);
    CHECK((*gpus)[0] == Gpu{"GPU-11", "0001:3b:00.0", {}});
    CHECK((*gpus)[1] == Gpu{"GPU-22", "0001:af:00.0", {"MIG-1", "MIG-2"}});
    CHECK((*gpus)[2] == Gpu{});
}
