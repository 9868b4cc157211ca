#include "worker_runtime/comm/timed_group.hpp"

#include <exception>
#include <utility>

namespace ddprun::worker {

namespace {

using c10::intrusive_ptr;
using c10d::Work;
using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<std::vector<at::Tensor>>;

/// The device of tensors that an engine was given: all are on one, or the engine refuses them.
c10::Device device_of(const Tensors& tensors) {
    return tensors.empty() ? c10::Device(c10::kCPU) : tensors.front().device();
}

}  // namespace

intrusive_ptr<Work> TimedGroup::timed(intrusive_ptr<Work> work, const c10::Device& device,
                                      std::vector<int> peers) {
    if (coalesced_peers_) {
        coalesced_peers_->insert(coalesced_peers_->end(), peers.begin(), peers.end());
    } else if (deadlines_ && work && !device.is_cpu()) {
        deadlines_->watch({.work = work, .peers = std::move(peers)});
    }
    return work;
}

intrusive_ptr<Work> TimedGroup::all_gather_into(at::Tensor& output, at::Tensor& input) {
    const c10::Device device = input.device();
    return timed(getBackend(device.type())->_allgather_base(output, input, {}), device);
}

intrusive_ptr<Work> TimedGroup::reduce_scatter_into(at::Tensor& output, at::Tensor& input,
                                                    const c10d::ReduceScatterOptions& options) {
    const c10::Device device = input.device();
    return timed(getBackend(device.type())->_reduce_scatter_base(output, input, options), device);
}

intrusive_ptr<Work> TimedGroup::all_gather_into(Tensors outputs, Tensors inputs) {
    const c10::Device device = device_of(inputs);
    return timed(getBackend(device.type())->allgather_into_tensor_coalesced(outputs, inputs, {}),
                 device);
}

intrusive_ptr<Work> TimedGroup::reduce_scatter_into(Tensors outputs, Tensors inputs,
                                                    const c10d::ReduceScatterOptions& options) {
    const c10::Device device = device_of(inputs);
    return timed(
        getBackend(device.type())->reduce_scatter_tensor_coalesced(outputs, inputs, options),
        device);
}

intrusive_ptr<Work> TimedGroup::coalesced(const c10::Device& device,
                                          const std::function<void()>& begin) {
    const c10::intrusive_ptr<c10d::Backend> engine = getBackend(device.type());
    engine->startCoalescing();
    coalesced_peers_.emplace();
    std::exception_ptr failure;
    try {
        begin();
    } catch (...) {
        failure = std::current_exception();
    }
    std::vector<int> peers = *std::exchange(coalesced_peers_, std::nullopt);
    const intrusive_ptr<Work> work = engine->endCoalescing();
    if (failure) {
        std::rethrow_exception(failure);
    }
    return timed(work, device, std::move(peers));
}

intrusive_ptr<Work> TimedGroup::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
    return timed(ProcessGroup::broadcast(tensors, options), device_of(tensors));
}

intrusive_ptr<Work> TimedGroup::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
    return timed(ProcessGroup::allreduce(tensors, options), device_of(tensors));
}

intrusive_ptr<Work> TimedGroup::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
    return timed(ProcessGroup::allreduce_coalesced(tensors, options), device_of(tensors));
}

intrusive_ptr<Work> TimedGroup::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
    return timed(ProcessGroup::reduce(tensors, options), device_of(tensors));
}

intrusive_ptr<Work> TimedGroup::allgather(TensorLists& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) {
    return timed(ProcessGroup::allgather(outputs, inputs, options), device_of(inputs));
}

intrusive_ptr<Work> TimedGroup::gather(TensorLists& outputs, Tensors& inputs,
                                       const c10d::GatherOptions& options) {
    return timed(ProcessGroup::gather(outputs, inputs, options), device_of(inputs));
}

intrusive_ptr<Work> TimedGroup::scatter(Tensors& outputs, TensorLists& inputs,
                                        const c10d::ScatterOptions& options) {
    return timed(ProcessGroup::scatter(outputs, inputs, options), device_of(outputs));
}

intrusive_ptr<Work> TimedGroup::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                               const c10d::ReduceScatterOptions& options) {
    return timed(ProcessGroup::reduce_scatter(outputs, inputs, options), device_of(outputs));
}

// Through its engine: c10d's operator takes the device from a tensor that may be empty.
intrusive_ptr<Work> TimedGroup::alltoall_base(at::Tensor& output, at::Tensor& input,
                                              std::vector<std::int64_t>& output_counts,
                                              std::vector<std::int64_t>& input_counts,
                                              const c10d::AllToAllOptions& options) {
    const c10::Device device = input.device();
    return timed(getBackend(device.type())
                     ->alltoall_base(output, input, output_counts, input_counts, options),
                 device);
}

intrusive_ptr<Work> TimedGroup::send(Tensors& tensors, int to, int tag) {
    return timed(ProcessGroup::send(tensors, to, tag), device_of(tensors), {to});
}

intrusive_ptr<Work> TimedGroup::recv(Tensors& tensors, int from, int tag) {
    return timed(ProcessGroup::recv(tensors, from, tag), device_of(tensors), {from});
}

// A group with deadlines has a GPU, and c10d's barrier is a collective there.
intrusive_ptr<Work> TimedGroup::barrier(const c10d::BarrierOptions& options) {
    return timed(ProcessGroup::barrier(options), c10::kCUDA);
}

}  // namespace ddprun::worker
