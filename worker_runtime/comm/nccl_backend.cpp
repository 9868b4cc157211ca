#include <ATen/cuda/CUDAContext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <c10/cuda/CUDAFunctions.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "base/os/network_interfaces.hpp"
#include "base/runtime_limits.hpp"
#include "worker_runtime/comm/backends.hpp"
#include "worker_runtime/comm/call_within.hpp"

namespace ddprun::worker {

Result<std::vector<Gpu>> take_gpus(int local_rank, int per_rank) {
    const int count = c10::cuda::device_count();
    if (count == 0) {
        return std::vector<Gpu>();
    }
    const std::optional<int> first = first_gpu(local_rank, per_rank, count);
    if (!first) {
        throw std::runtime_error(
            fmt::format("local rank {} has no GPU {}: this node shows {}, and each rank has {}; "
                        "start fewer workers on it",
                        local_rank, local_rank * per_rank + per_rank - 1, count, per_rank));
    }
    if (Result<void> fits =
            compare_nccl({.major = NCCL_MAJOR, .minor = NCCL_MINOR, .patch = NCCL_PATCH},
                         unpack_nccl_version(torch::cuda::nccl::version()));
        !fits) {
        return fits.error();
    }
    c10::cuda::set_device(static_cast<c10::DeviceIndex>(*first));
    std::vector<Gpu> gpus;
    for (int number = *first; number < *first + per_rank; ++number) {
        const cudaDeviceProp* const properties =
            at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(number));
        std::array<std::uint8_t, sizeof(properties->uuid.bytes)> uuid{};
        std::copy_n(properties->uuid.bytes, uuid.size(), uuid.begin());
        gpus.push_back({.number = number, .uuid = gpu_uuid_text(uuid)});
    }
    return gpus;
}

namespace {

constexpr int kOnlyIfUnset = 0;

/// When a communicator reports an error, c10d's watchdog ends the process 60 s later, by what the
/// launcher sets as torchrun does; like this it aborts the communicator, and soon.
void clean_up_on_errors() {
    constexpr auto kVariable = "TORCH_NCCL_ASYNC_ERROR_HANDLING";
    const char* const set = std::getenv(kVariable);
    if (set == nullptr || std::string_view(set) == std::to_string(c10d::TearDown)) {
        (void)setenv(kVariable, std::to_string(c10d::CleanUpOnly).c_str(), /*overwrite=*/1);
        // When this rank's GPU breaks the watchdog would end the process at once, and the error of
        // the call that meets it would be lost: the watchdog alone ends. With another value of the
        // user's the process is to end: c10d would not rethrow a time-out either.
        (void)setenv("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0", kOnlyIfUnset);
    }
    // A user who asks for dumps at a time-out gets the time for them.
    if (std::getenv("TORCH_NCCL_DUMP_ON_TIMEOUT") == nullptr) {
        (void)setenv("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC",
                     std::to_string(RuntimeLimits{}.nccl_dump_wait.count()).c_str(), kOnlyIfUnset);
    }
}

/// The engines that exist. c10d's watchdog of an engine reads CUDA's state ten times a second, by
/// static objects of LibTorch: at the end of a process whose group has failed, say, it would crash
/// once those are gone. So engines that still exist end first when main() returns or exit() runs.
class EnginesAtExit {
public:
    /// Never destroyed: a handler of exit() needs it, and that can be given nothing.
    static EnginesAtExit& all() {
        static EnginesAtExit& made = *std::make_unique<EnginesAtExit>().release();
        return made;
    }

    void add(c10d::Backend* engine) {
        // LibTorch's own state for GPUs, made at its first use of one, must exist before the
        // handler is registered: the last to come goes first.
        (void)c10::cuda::hasPrimaryContext(c10::cuda::current_device());
        [[maybe_unused]] static const int registered = std::atexit([] { all().end(); });
        const std::lock_guard lock(mutex_);
        engines_.insert(engine);
    }

    /// After an engine has connected: what c10d has made for that waits, when it is destroyed, for
    /// all that the GPU has to do, also for a rank that never comes. The handler goes before it.
    void go_before_what_exists() {
        [[maybe_unused]] static const int registered = std::atexit([] { all().end(); });
    }

    void remove(c10d::Backend* engine) {
        const std::lock_guard lock(mutex_);
        engines_.erase(engine);
    }

private:
    void end() {
        const std::lock_guard lock(mutex_);  // none is destroyed meanwhile
        if (engines_.empty() || getpid() != process_) {
            return;
        }
        try {
            Loss none;
            const auto engines = std::exchange(engines_, {});
            call_within(RuntimeLimits{}.abort_wait, none, "NCCL goes on", [engines] {
                for (c10d::Backend* const engine : engines) {
                    engine->abort();
                    engine->shutdown();  // waits for the watchdog
                }
            });
        } catch (const std::exception&) {
            // The process ends, whatever becomes of it.
        }
    }

    const pid_t process_ = getpid();  ///< a forked child has the objects, and not their threads
    std::mutex mutex_;
    std::set<c10d::Backend*> engines_;
};

/// c10d would abort communicators that its shutdown() has destroyed, and NCCL would use memory that
/// it has freed. An abort comes after the shutdown when a rank is lost, and when the process exits.
class EngineUntilExit final : public c10d::ProcessGroupNCCL {
public:
    template <typename... Arguments>
    explicit EngineUntilExit(Arguments&&... arguments)
        : ProcessGroupNCCL(std::forward<Arguments>(arguments)...) {
        EnginesAtExit::all().add(this);
    }
    ~EngineUntilExit() override { EnginesAtExit::all().remove(this); }
    EngineUntilExit(const EngineUntilExit&) = delete;
    EngineUntilExit& operator=(const EngineUntilExit&) = delete;

    void eagerConnectSingleDevice(at::Device device) override {
        ProcessGroupNCCL::eagerConnectSingleDevice(device);
        EnginesAtExit::all().go_before_what_exists();
    }

    void abort() override {
        if (!is_shut_down_) {
            ProcessGroupNCCL::abort();
        }
    }

    void shutdown() override {
        if (!is_shut_down_) {
            ProcessGroupNCCL::shutdown();
            is_shut_down_ = true;
        }
    }

private:
    std::atomic<bool> is_shut_down_ = false;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store,
                                            const BackendPlace& place, const std::string& name) {
    if (const auto interface = nccl_interface(place.local_address, network_interfaces())) {
        (void)setenv("NCCL_SOCKET_IFNAME", interface->c_str(), kOnlyIfUnset);
    }
    clean_up_on_errors();
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = place.timeout + RuntimeLimits{}.nccl_timeout_slack;
    options->group_name = name;
    return c10::make_intrusive<EngineUntilExit>(store, place.rank, place.world_size,
                                                std::move(options));
}

}  // namespace ddprun::worker
