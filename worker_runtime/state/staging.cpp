#include "worker_runtime/state/staging.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include "base/os/read_memory_room.hpp"

namespace ddprun::worker {

/// The work that a GPU's stream had been given when copy_now() was called.
struct Staging::GpuMoment {
    explicit GpuMoment(torch::Device device) : gpu(device), event(device.type()) {
        event.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    }

    static torch::Device gpu_of(const std::shared_ptr<GpuMoment>& moment) { return moment->gpu; }

    torch::Device gpu;
    c10::Event event;
};

namespace {

bool is_like(const torch::Tensor& copy, const torch::Tensor& tensor) {
    return copy.sizes() == tensor.sizes() && copy.scalar_type() == tensor.scalar_type() &&
           copy.is_pinned() == tensor.is_cuda();
}

/// Asks for huge pages: the first copy into `room` then takes a page fault for each 2 MiB, not for
/// each 4 KiB. A hint; pages that other memory shares are left alone.
void want_huge_pages(const torch::Tensor& room) {
    constexpr std::uintptr_t kHugePage = 2UL << 20;
    const auto begin = reinterpret_cast<std::uintptr_t>(room.data_ptr());
    const std::uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
    const std::uintptr_t end = (begin + room.nbytes()) / kHugePage * kHugePage;
    if (first < end) {
        (void)::madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
    }
}

torch::Tensor room_for(const torch::Tensor& tensor) {
    const auto options = torch::TensorOptions(tensor.scalar_type())
                             .device(torch::kCPU)
                             .pinned_memory(tensor.is_cuda());
    torch::Tensor room = torch::empty(tensor.sizes(), options);
    if (!room.is_pinned()) {
        want_huge_pages(room);
    }
    return room;
}

}  // namespace

template <typename Share, typename Visit>
void Staging::for_each_tensor(Share& share, const Visit& visit) {
    for (auto& file : share.files) {
        for (auto& [name, state] : file.tensors) {
            visit(file.prefix + "/" + name, state);
        }
    }
    for (auto* const tensors : {&share.rows, &share.sums}) {
        for (auto& [name, state] : *tensors) {
            visit(name, state);
        }
    }
}

torch::Tensor Staging::copy_for(const std::string& key, const StateTensor& state) const {
    const auto found = copies_.find(key);
    return found != copies_.end() && is_like(found->second, state.tensor) ? found->second
                                                                          : torch::Tensor();
}

Result<void> Staging::check_room(const CheckpointShare& share, int processes) const {
    std::uint64_t missing = 0;
    for_each_tensor(share, [&](const std::string& key, const StateTensor& state) {
        missing += copy_for(key, state).defined() ? 0 : state.tensor.nbytes();
    });
    const std::optional<MemoryRoom> room = missing > 0 ? read_memory_room() : std::nullopt;
    const std::uint64_t free = room ? room->free / static_cast<std::uint64_t>(processes) : missing;
    if (missing > free) {
        return Error{ErrorCode::LimitExceeded,
                     fmt::format("copying the state needs {} bytes of memory, and {} are free "
                                 "for each of {} workers here; call save(), which copies "
                                 "nothing that lies on the CPU",
                                 missing, free, processes)};
    }
    return {};
}

void Staging::reserve(const CheckpointShare& share) {
    std::map<std::string, torch::Tensor> kept;
    for_each_tensor(share, [&](const std::string& key, const StateTensor& state) {
        if (const torch::Tensor copy = copy_for(key, state); copy.defined()) {
            kept.emplace(key, copy);
        }
    });
    copies_ = std::move(kept);  // A copy of another shape must go before its successor comes.
    for_each_tensor(share, [&](const std::string& key, const StateTensor& state) {
        if (!copies_.contains(key)) {
            copies_[key] = room_for(state.tensor);
        }
    });
}

void Staging::bring_in_pages(const std::atomic<bool>& is_cut_short) const {
    constexpr std::uintptr_t kPage = 4096;
    constexpr std::uintptr_t kAtOnce = 16UL << 20;
    for (const auto& [key, copy] : copies_) {
        if (copy.is_pinned()) {
            continue;  // Its pages came with it.
        }
        const auto begin = reinterpret_cast<std::uintptr_t>(copy.data_ptr());
        const std::uintptr_t end = (begin + copy.nbytes()) / kPage * kPage;
        for (std::uintptr_t at = (begin + kPage - 1) / kPage * kPage; at < end; at += kAtOnce) {
            // Linux before 5.14 lacks it; the pages then come with the first copy.
            if (is_cut_short || ::madvise(reinterpret_cast<void*>(at), std::min(kAtOnce, end - at),
                                          MADV_POPULATE_WRITE) != 0) {
                return;
            }
        }
    }
}

void Staging::copy_now(CheckpointShare& share) {
    const torch::NoGradGuard no_grad;
    moments_.clear();
    for_each_tensor(share, [&](const std::string& key, StateTensor& state) {
        const torch::Device device = state.tensor.device();
        if (device.is_cuda() && std::ranges::count(moments_, device, &GpuMoment::gpu_of) == 0) {
            moments_.push_back(std::make_shared<GpuMoment>(device));
        }
        if (!state.changes_in_steps_only) {
            const torch::Tensor& copy = copies_.at(key);
            copy.copy_(state.tensor);
            state.tensor = copy;
        }
    });
}

void Staging::copy_rest(CheckpointShare& share) const {
    const torch::NoGradGuard no_grad;
    std::vector<c10::Stream> sides;
    for (const std::shared_ptr<GpuMoment>& moment : moments_) {
        sides.push_back(
            c10::impl::VirtualGuardImpl(moment->gpu.type()).getStreamFromGlobalPool(moment->gpu));
        moment->event.block(sides.back());
    }
    const c10::MultiStreamGuard guard(sides);
    for_each_tensor(share, [&](const std::string& key, StateTensor& state) {
        if (state.changes_in_steps_only) {
            const torch::Tensor& copy = copies_.at(key);
            copy.copy_(state.tensor, /*non_blocking=*/true);
            state.tensor = copy;
        }
    });
    for (const c10::Stream& side : sides) {
        side.synchronize();
    }
}

}  // namespace ddprun::worker
