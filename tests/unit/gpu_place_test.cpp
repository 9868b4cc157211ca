#include "worker_runtime/env/gpu_place.hpp"

#include <stdexcept>

#include "base/os/network_interfaces.hpp"
#include "tests/support/catch.hpp"
#include "worker_runtime/comm/exception_text.hpp"

using namespace ddprun;
using namespace ddprun::worker;

namespace {

const std::vector<NetworkInterface> kInterfaces = {
    {.name = "lo", .is_up = true, .addresses = {"127.0.0.1", "::1"}},
    {.name = "eth0", .is_up = true, .addresses = {"10.0.0.4", "fe80::3e7c:3fff%eth0"}},
    {.name = "eth01", .is_up = true, .addresses = {"10.0.0.40"}},
    {.name = "eth1", .is_up = true, .addresses = {"2001:db8::7"}},
    {.name = "eth2", .is_up = false, .addresses = {"10.0.0.6"}},
};

}  // namespace

TEST_CASE("a GPU's UUID is written as nvidia-smi does") {
    CHECK(gpu_uuid_text({0x1e, 0xca, 0xff, 0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08,
                         0x09, 0x0a, 0x0b, 0xff}) == "GPU-1ecaff00-0102-0304-0506-0708090a0bff");
}

TEST_CASE("ranks with a GPU each, and ranks without any, may join") {
    CHECK(are_gpus_shared({{"a", {"GPU-1"}}, {"a", {"GPU-2"}}, {"b", {"GPU-3"}}}, false).value() ==
          false);
    CHECK(are_gpus_shared({{"a", {"GPU-1", "GPU-2"}}, {"a", {"GPU-3", "GPU-4"}}}, false).value() ==
          false);
    CHECK(are_gpus_shared({{"a", {}}, {"a", {}}}, false).value() == false);
    CHECK(are_gpus_shared({}, false).value() == false);
}

TEST_CASE("two ranks on one GPU are refused, both named, unless asked for") {
    const std::vector<RankGpus> ranks = {{"a", {"GPU-1"}}, {"a", {"GPU-2"}}, {"a-2", {"GPU-2"}}};
    const Result<bool> refused = are_gpus_shared(ranks, false);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == ErrorCode::InvalidArgument);
    CHECK(refused.error().what ==
          "rank 1 on host a and rank 2 on host a-2 have the same GPU, GPU-2: start at most one "
          "worker for each GPU (ddprun --nproc-per-node gpu does), or set "
          "ProcessGroupOptions::allow_shared_gpus");
    CHECK(are_gpus_shared(ranks, true).value() == true);

    // Also if it is the first of one rank's and the last of the other's.
    const Result<bool> crossed =
        are_gpus_shared({{"a", {"GPU-1", "GPU-2"}}, {"a", {"GPU-3", "GPU-1"}}}, false);
    REQUIRE_FALSE(crossed);
    CHECK(crossed.error().what.starts_with(
        "rank 0 on host a and rank 1 on host a have the same GPU, GPU-1: "));
}

TEST_CASE("ranks with different numbers of GPUs are refused, with both numbers") {
    const Result<bool> refused =
        are_gpus_shared({{"a", {"GPU-1", "GPU-2"}}, {"b", {"GPU-3"}}}, true);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().what ==
          "rank 0 on host a has 2 GPUs, but rank 1 on host b has 1: set "
          "ProcessGroupOptions::gpus_per_rank alike on all of them");
}

TEST_CASE("the GPUs of local ranks lie side by side; those alone that a worker sees are its own") {
    CHECK(first_gpu(0, 1, 8) == 0);
    CHECK(first_gpu(3, 1, 8) == 3);
    CHECK(first_gpu(3, 2, 8) == 6);
    CHECK(first_gpu(4, 2, 8) == std::nullopt);
    CHECK(first_gpu(1, 2, 3) == std::nullopt);
    CHECK(first_gpu(5, 1, 1) == 0);
    CHECK(first_gpu(5, 2, 2) == 0);
    CHECK(first_gpu(0, 2, 1) == std::nullopt);
}

TEST_CASE("a rank without a GPU among others that have one is refused, whichever it is") {
    const Result<bool> later = are_gpus_shared({{"a", {"GPU-1"}}, {"b", {}}}, true);
    REQUIRE_FALSE(later);
    CHECK(later.error().what.starts_with(
        "rank 0 on host a has the GPU GPU-1, but rank 1 on host b sees none: "));
    const Result<bool> first = are_gpus_shared({{"a", {}}, {"b", {"GPU-1"}}}, true);
    REQUIRE_FALSE(first);
    CHECK(first.error().what.starts_with(
        "rank 1 on host b has the GPU GPU-1, but rank 0 on host a sees none: "));
}

TEST_CASE("NCCL's headers must be of LibTorch's own minor version") {
    const NcclVersion torch = unpack_nccl_version(std::uint64_t{2} << 32 | 29 << 16 | 7);
    CHECK(torch.major == 2);
    CHECK(torch.minor == 29);
    CHECK(torch.patch == 7);
    CHECK(compare_nccl({2, 29, 3}, torch).has_value());
    for (const NcclVersion other : {NcclVersion{2, 28, 7}, NcclVersion{2, 30, 7}, {3, 29, 7}}) {
        CHECK_FALSE(compare_nccl(other, torch).has_value());
    }
    CHECK(compare_nccl({2, 18, 1}, torch)
              .error()
              .what.starts_with("NCCL cannot be used: this program was compiled with the headers "
                                "of NCCL 2.18.1, its LibTorch with those of 2.29.7, "));
}

TEST_CASE("NCCL uses the one interface that has the node's address") {
    CHECK(nccl_interface("10.0.0.4", kInterfaces) == "=eth0");
    CHECK(nccl_interface("10.0.0.40", kInterfaces) == "=eth01");
    CHECK(nccl_interface("127.0.0.1", kInterfaces) == "=lo");
    CHECK(nccl_interface("2001:0DB8:0::7", kInterfaces) == "=eth1");
    CHECK(nccl_interface("fe80::3e7c:3fff", kInterfaces) == "=eth0");
}

TEST_CASE("NCCL is left to choose where no interface has the node's address") {
    CHECK(nccl_interface("10.0.0.5", kInterfaces) == std::nullopt);
    CHECK(nccl_interface("10.0.0.6", kInterfaces) == std::nullopt);
    CHECK(nccl_interface("", kInterfaces) == std::nullopt);
    CHECK(nccl_interface("gpu-07", kInterfaces) == std::nullopt);
    CHECK(nccl_interface("10.0.0.4", {}) == std::nullopt);
}

TEST_CASE("of what NCCL could not do, the reason is told, in one line") {
    CHECK(all_lines(std::runtime_error(
              "NCCL error in: NCCLUtils.cpp:94, invalid usage, NCCL version 2.29.7\n"
              "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
              "Last error:\n"
              "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 59000\n"
              "Exception raised from create at NCCLUtils.cpp:94\n")) ==
          "NCCL error in: NCCLUtils.cpp:94, invalid usage, NCCL version 2.29.7, ncclInvalidUsage: "
          "This usually reflects invalid usage of NCCL library., Last error: Duplicate GPU "
          "detected : rank 1 and rank 0 both on CUDA device 59000");
}

TEST_CASE("this machine's interfaces are seen") {
    CHECK(nccl_interface("127.0.0.1", network_interfaces()) == "=lo");
}
