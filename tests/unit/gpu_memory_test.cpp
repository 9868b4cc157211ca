// Whether GPUs have back what ended workers had.

#include "agent/gpu/gpu_memory.hpp"

#include <string>

#include "tests/support/catch.hpp"

using namespace ddprun;
using namespace ddprun::agent;

namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
const Limits kLimits;

GpuMemoryWatch watch_of(GpuBytes before) {
    GpuMemoryWatch watch(kLimits);
    watch.remember(std::move(before));
    return watch;
}

}  // namespace

TEST_CASE("GPU memory is asked and answered in one text") {
    const GpuBytes memory{{0, 1024}, {3, 0}, {7, ~std::uint64_t{0}}};
    CHECK(text_of(memory) == "0:1024 3:0 7:18446744073709551615");
    CHECK(gpu_memory_from(text_of(memory)) == memory);
    CHECK(gpu_memory_from("") == GpuBytes{});
    for (const char* text : {"0", "0:", ":1", "0:1,1:2", "0:1  1:2", "0:-1", "0:1 0:2", "x:1",
                             "0:18446744073709551616", " 0:1"}) {
        CAPTURE(text);
        CHECK_FALSE(gpu_memory_from(text).has_value());
    }
}

TEST_CASE("GPU memory is freed once each GPU has no more in use than before, and a slack") {
    GpuMemoryWatch watch = watch_of({{0, kGiB}, {1, 0}});
    CHECK(watch.can_tell());
    CHECK(watch.allowed() ==
          GpuBytes{{0, kGiB + kLimits.gpu_memory_slack}, {1, kLimits.gpu_memory_slack}});
    CHECK_FALSE(watch.is_freed({{0, kGiB}, {1, kGiB}}));
    CHECK_FALSE(watch.is_freed({{0, kGiB + kLimits.gpu_memory_slack + 1}, {1, 0}}));
    CHECK(watch.is_freed({{0, kGiB + kLimits.gpu_memory_slack}, {1, kLimits.gpu_memory_slack}}));
}

TEST_CASE("of GPUs that do not tell, before or now, nothing is awaited") {
    GpuMemoryWatch watch = watch_of({{0, 0}});
    CHECK(watch.is_freed({{1, 80 * kGiB}}));
    CHECK(watch.is_freed({}));
    CHECK_FALSE(watch_of({}).can_tell());
    CHECK_FALSE(GpuMemoryWatch(kLimits).can_tell());
}

TEST_CASE("memory that was in use before the first workers and is freed later must stay free") {
    GpuMemoryWatch watch = watch_of({{0, 20 * kGiB}});
    CHECK(watch.is_freed({{0, kGiB}}));
    CHECK_FALSE(watch.is_freed({{0, 20 * kGiB}}));
    // The slack does not add up from one generation to the next.
    CHECK(watch.is_freed({{0, kGiB + kLimits.gpu_memory_slack}}));
    CHECK_FALSE(watch.is_freed({{0, kGiB + 2 * kLimits.gpu_memory_slack}}));
}

TEST_CASE("memory that is waited for no longer is named once, and never waited for again") {
    GpuMemoryWatch watch = watch_of({{0, kGiB}, {1, 0}, {2, 0}});
    CHECK_FALSE(watch.is_freed({{0, 3 * kGiB}, {1, kGiB / 2}, {2, 0}}));
    const std::string text = watch.give_up();
    CAPTURE(text);
    CHECK(text.find("4 s after all workers were gone GPU 0 holds 2.0 GiB, GPU 1 holds 0.5 GiB "
                    "more than before") != std::string::npos);
    CHECK(text.find("GPU 2") == std::string::npos);
    CHECK(watch.is_freed({{0, 3 * kGiB}, {1, kGiB / 2}, {2, 0}}));
    CHECK_FALSE(watch.is_freed({{0, 4 * kGiB}, {1, kGiB / 2}, {2, 0}}));
}
