#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <memory>
#include <new>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "worker_runtime/comm/exception_text.hpp"
#include "worker_runtime/comm/process_group_state.hpp"

namespace ddprun {

namespace {

c10d::ReduceOp reduce_op(Reduction reduction) {
    switch (reduction) {
        case Reduction::Sum:
            break;
        case Reduction::Mean:
            return c10d::ReduceOp::AVG;
        case Reduction::Min:
            return c10d::ReduceOp::MIN;
        case Reduction::Max:
            return c10d::ReduceOp::MAX;
        case Reduction::Product:
            return c10d::ReduceOp::PRODUCT;
    }
    return c10d::ReduceOp::SUM;
}

/// How a device's failure begins that LibTorch throws as a plain c10::Error, or as a class that
/// only CUDA's headers have: of cuBLAS and others, of the driver, of cuDNN.
constexpr std::array<std::string_view, 4> kDeviceFailures = {"CUDA error", "CUDA driver error",
                                                             "cuDNN error", "cuDNN Frontend error"};

/// True for tensors on a GPU that Gloo carries: c10d copies them to the CPU for a collective, but
/// has send() and recv() take the GPU's addresses for the CPU's.
bool is_sent_by_cpu(const worker::BackendPlace& at, const torch::Tensor& tensor) {
    return at.is_gpu_shared && tensor.is_cuda();
}

}  // namespace

bool worker::is_device_failure(const std::exception& failure) {
    const std::string_view text(failure.what());
    return dynamic_cast<const c10::AcceleratorError*>(&failure) != nullptr ||
           dynamic_cast<const c10::OutOfMemoryError*>(&failure) != nullptr ||
           dynamic_cast<const std::bad_alloc*>(&failure) != nullptr ||
           std::any_of(kDeviceFailures.begin(), kDeviceFailures.end(),
                       [&](std::string_view begin) { return text.starts_with(begin); }) ||
           text.find("DefaultCPUAllocator: can't allocate memory") != std::string_view::npos;
}

void worker::require_other_rank(int other, int rank, int world_size) {
    TORCH_CHECK(other >= 0 && other < world_size && other != rank, "rank ", other,
                " is not another rank of this group of ", world_size);
}

Pending<void> ProcessGroup::collective_async(
    const std::string& what, const std::function<c10::intrusive_ptr<c10d::Work>()>& begin) {
    if (state_->broken.has_value()) {
        return Pending<void>(*state_->broken);
    }
    if (state_->is_finished) {
        return Pending<void>(
            Error{ErrorCode::InvalidArgument, what + ": the process group is finished"});
    }
    c10::intrusive_ptr<c10d::Work> work;
    try {
        state_->loss->check();
        work = begin();
    } catch (const std::exception& failure) {
        if (dynamic_cast<const c10::DistError*>(&failure) != nullptr ||
            worker::is_device_failure(failure)) {
            return Pending<void>(state_->broken_by(what, failure));
        }
        return Pending<void>(Error{ErrorCode::InvalidArgument,
                                   fmt::format("{} was refused on rank {} of {}: {}", what, rank(),
                                               world_size(), worker::first_line(failure))});
    }
    return Pending<void>([state = state_, what, work](Pending<void>::Bound bound) {
        return state->wait_for(what, work, bound);
    });
}

Result<void> ProcessGroup::State::wait_for(const std::string& what,
                                           const c10::intrusive_ptr<c10d::Work>& work,
                                           Pending<void>::Bound bound) {
    if (broken.has_value()) {
        return *broken;
    }
    try {
        if (work) {
            const auto begun = std::chrono::steady_clock::now();
            // c10d takes 0 for no bound.
            (void)work->wait(bound ? std::max(*bound, std::chrono::milliseconds(1)) : kNoTimeout);
            // On a GPU only its stream waits, and this returns at once.
            if (devices.front().is_cpu()) {
                waited_ns->fetch_add(
                    std::chrono::nanoseconds(std::chrono::steady_clock::now() - begun).count());
            }
        }
    } catch (const std::exception& failure) {
        return broken_by(what, failure);
    }
    return check(what);
}

Result<void> ProcessGroup::collective(
    const std::string& what, const std::function<c10::intrusive_ptr<c10d::Work>()>& begin) {
    return collective_async(what, begin).wait();
}

Result<void> ProcessGroup::check_call(const std::string& what, const std::function<void()>& check) {
    return collective(what, [&check] {
        check();
        return c10::intrusive_ptr<c10d::Work>();
    });
}

Result<void> ProcessGroup::check(const std::string& what) {
    return state_->check(what);
}

Result<void> ProcessGroup::check_after(const std::string& what) {
    try {
        for (const torch::Device& device : devices()) {
            if (!device.is_cpu()) {
                c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
            }
        }
    } catch (const std::exception& failure) {
        return state_->broken_by(what, failure);
    }
    return check(what);
}

Result<double> ProcessGroup::read(const std::string& what, const torch::Tensor& tensor) {
    double number = 0;
    try {
        number = tensor.item<double>();
    } catch (const std::exception& failure) {
        return state_->broken_by(what, failure);
    }
    if (const Result<void> whole = check(what); !whole) {
        return whole.error();
    }
    return number;
}

bool ProcessGroup::has_mean(torch::Device device) const {
    return !device.is_cpu() && state_->group->getBackend(device.type())->getBackendName() == "nccl";
}

namespace {

/// Room for one tensor of each rank.
torch::Tensor room_for_all(const torch::Tensor& tensor, int world_size) {
    std::vector<std::int64_t> shape{world_size};
    shape.insert(shape.end(), tensor.sizes().begin(), tensor.sizes().end());
    return torch::empty(shape, tensor.options().requires_grad(false));
}

/// One contiguous tensor for each rank; throws if `parts` is something else.
std::vector<torch::Tensor> parts_of(const torch::Tensor& parts, int world_size) {
    TORCH_CHECK(parts.defined() && parts.dim() > 0 && parts.size(0) == world_size,
                "parts must have one row for each of ", world_size, " ranks, and ",
                parts.defined() ? fmt::format("are of shape [{}]", fmt::join(parts.sizes(), ", "))
                                : std::string("are undefined"));
    return parts.contiguous().unbind(0);
}

/// Reduces `rows` over the first dimension into `result`, of their type.
void reduce_into(torch::Tensor result, const torch::Tensor& rows, Reduction reduction) {
    switch (reduction) {
        case Reduction::Sum:
            (void)torch::sum_out(result, rows, 0, /*keepdim=*/false, rows.scalar_type());
            break;
        case Reduction::Mean:
            (void)torch::mean_out(result, rows, 0);
            break;
        case Reduction::Min:
            (void)torch::amin_out(result, rows, 0);
            break;
        case Reduction::Max:
            (void)torch::amax_out(result, rows, 0);
            break;
        case Reduction::Product:
            (void)torch::prod_out(result, rows, 0, /*keepdim=*/false, rows.scalar_type());
            break;
    }
}

/// Throws unless `all` has room for `one` of each rank.
void check_flat(const torch::Tensor& all, const torch::Tensor& one, int world_size) {
    TORCH_CHECK(all.defined() && one.defined() && all.numel() == world_size * one.numel() &&
                    all.scalar_type() == one.scalar_type() && all.device() == one.device() &&
                    all.is_contiguous() && one.is_contiguous(),
                "the one tensor must be contiguous, of the other's type and device, and hold ",
                world_size, " times as many numbers");
}

/// Throws unless there are tensors, of one type and device.
void check_alike(const std::vector<torch::Tensor>& tensors) {
    TORCH_CHECK(!tensors.empty(), "there is no tensor");
    for (const torch::Tensor& tensor : tensors) {
        TORCH_CHECK(tensor.defined() && tensors.front().defined() &&
                        tensor.device() == tensors.front().device() &&
                        tensor.scalar_type() == tensors.front().scalar_type(),
                    "its tensors must be of one type and device");
    }
}

std::int64_t sum_of(const std::vector<std::int64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

Pending<void> without_value(Pending<torch::Tensor> pending) {
    return std::move(pending).then([](const torch::Tensor& /*value*/) { return Result<void>(); });
}

/// As group.collective_async(), with the tensor that `begin` makes for the result.
template <typename Begin>
Pending<torch::Tensor> result_of(ProcessGroup& group, const std::string& what, const Begin& begin) {
    torch::Tensor result;
    Pending<void> done = group.collective_async(what, [&] { return begin(result); });
    return std::move(done).then([result]() -> Result<torch::Tensor> { return result; });
}

/// [n, ...] of the input's type: a row for each that is received.
torch::Tensor room_for_rows(const torch::Tensor& rows, std::int64_t count) {
    std::vector<std::int64_t> shape(rows.sizes().begin(), rows.sizes().end());
    shape.front() = count;
    return torch::empty(shape, rows.options().requires_grad(false));
}

}  // namespace

bool ProcessGroup::is_over_gloo(const torch::Tensor& tensor) const {
    return tensor.is_cpu() || state_->at.is_gpu_shared;
}

bool ProcessGroup::divides(const torch::Tensor& tensor, Reduction reduction) const {
    TORCH_CHECK(reduction != Reduction::Mean || tensor.is_floating_point(), "a mean of integers (",
                tensor.scalar_type(), ") is not one; sum them up, or convert them first");
    return reduction == Reduction::Mean && !has_mean(tensor.device());
}

Pending<torch::Tensor> ProcessGroup::reducing(const std::string& what, const torch::Tensor& tensor,
                                              Reduction reduction, const BeginReduction& begin) {
    bool is_divided = false;
    torch::Tensor result;
    Pending<void> pending = collective_async(what, [&] {
        is_divided = divides(tensor, reduction);
        return begin(reduce_op(is_divided ? Reduction::Sum : reduction), result);
    });
    return std::move(pending).then([what, is_divided, result, state = state_] {
        return state->compute(what, [&] {
            return is_divided ? torch::Tensor(result).div_(state->at.world_size) : result;
        });
    });
}

Pending<void> ProcessGroup::all_reduce_async(const torch::Tensor& tensor, Reduction reduction) {
    return without_value(
        reducing("all_reduce", tensor, reduction, [&](c10d::ReduceOp op, torch::Tensor& result) {
            result = tensor;
            std::vector<torch::Tensor> tensors{tensor};
            return state_->group->allreduce(tensors, {.reduceOp = std::move(op)});
        }));
}

Pending<void> ProcessGroup::all_reduce_coalesced_async(const std::vector<torch::Tensor>& tensors,
                                                       Reduction reduction) {
    const std::string what = "all_reduce_coalesced";
    bool is_divided = false;
    if (const Result<void> right = check_call(what,
                                              [&] {
                                                  check_alike(tensors);
                                                  is_divided = divides(tensors.front(), reduction);
                                              });
        !right) {
        return Pending<void>(right);
    }
    if (is_sent_by_cpu(state_->at, tensors.front())) {
        std::vector<Pending<void>> begun;  // c10d's Gloo has none for GPUs
        for (const torch::Tensor& tensor : tensors) {
            begun.push_back(all_reduce_async(tensor, reduction));
        }
        return all_of(std::move(begun));
    }
    Pending<void> pending = collective_async(what, [&] {
        c10d::AllreduceCoalescedOptions options;
        options.reduceOp = reduce_op(is_divided ? Reduction::Sum : reduction);
        std::vector<torch::Tensor> all = tensors;
        return state_->group->allreduce_coalesced(all, options);
    });
    return std::move(pending).then([what, tensors, is_divided, state = state_] {
        return state->compute(what, [&] {
            if (is_divided) {
                torch::_foreach_div_(tensors, state->at.world_size);
            }
        });
    });
}

Pending<void> ProcessGroup::reduce_async(const torch::Tensor& tensor, int root,
                                         Reduction reduction) {
    return without_value(
        reducing("reduce", tensor, reduction, [&](c10d::ReduceOp op, torch::Tensor& result) {
            result = tensor;
            std::vector<torch::Tensor> tensors{tensor};
            return state_->group->reduce(tensors, {.reduceOp = std::move(op), .rootRank = root});
        }));
}

Pending<void> ProcessGroup::broadcast_async(const torch::Tensor& tensor, int root) {
    return collective_async("broadcast", [&] {
        std::vector<torch::Tensor> tensors{tensor};
        return state_->group->broadcast(tensors, {.rootRank = root});
    });
}

Pending<torch::Tensor> ProcessGroup::all_gather_async(const torch::Tensor& tensor) {
    return result_of(*this, "all_gather", [&](torch::Tensor& gathered) {
        gathered = room_for_all(tensor, world_size());
        std::vector<std::vector<torch::Tensor>> outputs{gathered.unbind(0)};
        std::vector<torch::Tensor> inputs{tensor.contiguous()};
        return state_->group->allgather(outputs, inputs, {});
    });
}

Pending<void> ProcessGroup::all_gather_into_async(const torch::Tensor& gathered,
                                                  const torch::Tensor& tensor) {
    const std::string what = "all_gather_into";
    if (is_over_gloo(tensor)) {
        return parts_into(what, gathered, tensor);
    }
    return collective_async(what, [&] {
        check_flat(gathered, tensor, world_size());
        // An operator takes them, so it waits for a tensor that is still written.
        torch::Tensor output = gathered.view(-1);
        torch::Tensor input = tensor.view(-1);
        return state_->group->all_gather_into(output, input);
    });
}

// Gloo's own all_gather receives into a tensor of its own, as large as all, and copies it. A
// broadcast writes in place, and those of all ranks send as much as it does.
Pending<void> ProcessGroup::parts_into(const std::string& what, const torch::Tensor& gathered,
                                       const torch::Tensor& tensor) {
    torch::Tensor rows;
    const Result<void> right = check_call(what, [&] {
        check_flat(gathered, tensor, world_size());
        rows = gathered.detach().view({world_size(), -1});
        const torch::Tensor own = rows[rank()];
        if (own.data_ptr() != tensor.data_ptr()) {
            own.copy_(tensor.detach().view(-1));
        }
    });
    if (!right || tensor.numel() == 0) {
        return Pending<void>(right);
    }
    std::vector<Pending<void>> parts;
    for (int root = 0; root < world_size(); ++root) {
        parts.push_back(collective_async(what, [&] {
            std::vector<torch::Tensor> part{rows[root]};
            return state_->group->broadcast(part, {.rootRank = root});
        }));
    }
    return all_of(std::move(parts));
}

Pending<void> ProcessGroup::coalesced(
    const std::string& what, const std::vector<torch::Tensor>& of_all,
    const std::vector<torch::Tensor>& of_one, Reduction reduction,
    const std::function<Pending<void>(std::size_t pair)>& begin_each,
    const std::function<c10::intrusive_ptr<c10d::Work>(worker::TimedGroup& group)>& begin_all) {
    const Result<void> right = check_call(what, [&] {
        TORCH_CHECK(of_all.size() == of_one.size(), "there are ", of_all.size(),
                    " tensors of all ranks and ", of_one.size(), " of this one");
        for (std::size_t i = 0; i < of_all.size(); ++i) {
            check_flat(of_all[i], of_one[i], world_size());
        }
        check_alike(of_all);
        (void)divides(of_all.front(), reduction);
    });
    if (!right) {
        return Pending<void>(right);
    }
    if (!is_over_gloo(of_all.front())) {
        return collective_async(what, [&] { return begin_all(*state_->group); });
    }
    std::vector<Pending<void>> begun;
    for (std::size_t i = 0; i < of_all.size(); ++i) {
        begun.push_back(begin_each(i));
    }
    return all_of(std::move(begun));
}

Pending<void> ProcessGroup::all_gather_into_coalesced_async(
    const std::vector<torch::Tensor>& gathered, const std::vector<torch::Tensor>& tensors) {
    return coalesced(
        "all_gather_into_coalesced", gathered, tensors, Reduction::Sum,
        [&](std::size_t pair) { return all_gather_into_async(gathered[pair], tensors[pair]); },
        [&](worker::TimedGroup& group) { return group.all_gather_into(gathered, tensors); });
}

Pending<void> ProcessGroup::reduce_scatter_into_coalesced_async(
    const std::vector<torch::Tensor>& own, const std::vector<torch::Tensor>& parts,
    Reduction reduction) {
    return coalesced(
        "reduce_scatter_into_coalesced", parts, own, reduction,
        [&](std::size_t pair) {
            return reduce_scatter_into_async(own[pair], parts[pair], reduction);
        },
        [&](worker::TimedGroup& group) {
            return group.reduce_scatter_into(own, parts, {.reduceOp = reduce_op(reduction)});
        });
}

Pending<torch::Tensor> ProcessGroup::gather_async(const torch::Tensor& tensor, int root) {
    return result_of(*this, "gather", [&](torch::Tensor& gathered) {
        std::vector<std::vector<torch::Tensor>> outputs;
        if (rank() == root) {
            gathered = room_for_all(tensor, world_size());
            outputs.push_back(gathered.unbind(0));
        }
        std::vector<torch::Tensor> inputs{tensor.contiguous()};
        return state_->group->gather(outputs, inputs, {.rootRank = root});
    });
}

Pending<void> ProcessGroup::scatter_async(const torch::Tensor& tensor, const torch::Tensor& parts,
                                          int root) {
    return collective_async("scatter", [&] {
        std::vector<torch::Tensor> outputs{tensor};
        std::vector<std::vector<torch::Tensor>> inputs;
        if (rank() == root) {
            inputs.push_back(parts_of(parts, world_size()));
        }
        return state_->group->scatter(outputs, inputs, {.rootRank = root});
    });
}

// Gloo's own reduce_scatter sums up everything on each rank, and reports no dead peer. So over
// Gloo each rank gets its rows of all ranks, and reduces them itself.
Pending<torch::Tensor> ProcessGroup::reduce_scatter_async(const torch::Tensor& parts,
                                                          Reduction reduction) {
    if (is_over_gloo(parts)) {
        return rows_for_reduction("reduce_scatter", reduction, {},
                                  [&] {
                                      (void)parts_of(parts, world_size());
                                      return parts;
                                  })
            .then([reduction, state = state_](const torch::Tensor& rows) {
                return state->compute("reduce_scatter", [&] {
                    torch::Tensor result = torch::empty_like(rows[0]);
                    reduce_into(result, rows, reduction);
                    return result;
                });
            });
    }
    return reducing(
        "reduce_scatter", parts, reduction, [&](c10d::ReduceOp op, torch::Tensor& result) {
            std::vector<std::vector<torch::Tensor>> lists{parts_of(parts, world_size())};
            result = torch::empty_like(lists.front().front());
            std::vector<torch::Tensor> outputs{result};
            return state_->group->reduce_scatter(outputs, lists, {.reduceOp = std::move(op)});
        });
}

Pending<void> ProcessGroup::reduce_scatter_into_async(const torch::Tensor& own,
                                                      const torch::Tensor& parts,
                                                      Reduction reduction,
                                                      const torch::Tensor& room) {
    const std::string what = "reduce_scatter_into";
    if (is_over_gloo(parts)) {
        return rows_for_reduction(what, reduction, room,
                                  [&] {
                                      check_flat(parts, own, world_size());
                                      return parts.view({world_size(), -1});
                                  })
            .then([what, own, reduction, state = state_](const torch::Tensor& rows) {
                return state->compute(what, [&] { reduce_into(own.view(-1), rows, reduction); });
            });
    }
    return without_value(
        reducing(what, parts, reduction, [&](c10d::ReduceOp op, torch::Tensor& result) {
            check_flat(parts, own, world_size());
            result = own;
            torch::Tensor input = parts.view(-1);
            return state_->group->reduce_scatter_into(result, input, {.reduceOp = std::move(op)});
        }));
}

Pending<torch::Tensor> ProcessGroup::rows_for_reduction(
    const std::string& what, Reduction reduction, const torch::Tensor& room,
    const std::function<torch::Tensor()>& rows) {
    return result_of(*this, what, [&](torch::Tensor& received) {
        torch::Tensor input = rows().detach().contiguous();
        (void)divides(input, reduction);
        received = room.defined() ? room.view(input.sizes()) : torch::empty_like(input);
        std::vector<std::int64_t> even;
        return state_->group->alltoall_base(received, input, even, even, {});
    });
}

Pending<torch::Tensor> ProcessGroup::all_to_all_async(const torch::Tensor& parts) {
    const std::vector<std::int64_t> one_each(static_cast<std::size_t>(world_size()), 1);
    return all_to_all_async(parts, one_each, one_each);
}

Pending<torch::Tensor> ProcessGroup::all_to_all_async(
    const torch::Tensor& rows, const std::vector<std::int64_t>& send_rows,
    const std::vector<std::int64_t>& receive_rows) {
    return result_of(*this, "all_to_all", [&](torch::Tensor& received) {
        const auto world = static_cast<std::size_t>(world_size());
        TORCH_CHECK(send_rows.size() == world && receive_rows.size() == world,
                    "counts of rows are needed for ", world, " ranks, and there are ",
                    send_rows.size(), " to send and ", receive_rows.size(), " to receive");
        TORCH_CHECK(rows.defined() && rows.dim() > 0 && rows.size(0) == sum_of(send_rows),
                    "the rows to send are ", sum_of(send_rows), ", but the tensor has ",
                    rows.defined() && rows.dim() > 0 ? rows.size(0) : 0);
        received = room_for_rows(rows, sum_of(receive_rows));
        torch::Tensor input = rows.detach().contiguous();
        std::vector<std::int64_t> receives = receive_rows;
        std::vector<std::int64_t> sends = send_rows;
        return state_->group->alltoall_base(received, input, receives, sends, {});
    });
}

Pending<void> ProcessGroup::send_async(const torch::Tensor& tensor, int to, int tag) {
    return collective_async("send", [&] {
        worker::require_other_rank(to, rank(), world_size());
        std::vector<torch::Tensor> tensors{
            is_sent_by_cpu(state_->at, tensor) ? tensor.contiguous().cpu() : tensor.contiguous()};
        return state_->group->send(tensors, to, tag);
    });
}

Pending<void> ProcessGroup::recv_async(const torch::Tensor& tensor, int from, int tag) {
    torch::Tensor received = tensor;
    Pending<void> done = collective_async("recv", [&] {
        worker::require_other_rank(from, rank(), world_size());
        if (is_sent_by_cpu(state_->at, tensor)) {
            received = torch::empty_like(tensor, torch::kCPU);
        }
        std::vector<torch::Tensor> tensors{received};
        return state_->group->recv(tensors, from, tag);
    });
    if (received.is_same(tensor)) {
        return done;
    }
    return std::move(done).then([state = state_, tensor, received] {
        return state->compute("recv", [&] { (void)torch::Tensor(tensor).copy_(received); });
    });
}

Pending<void> ProcessGroup::barrier_async() {
    return collective_async("barrier", [&] {
        c10d::BarrierOptions options;
        if (!state_->at.is_gpu_shared) {
            // Else c10d takes the current GPU of this thread: GPU 0 if another one has joined.
            options.device = state_->devices.front();
        }
        return state_->group->barrier(options);
    });
}

}  // namespace ddprun
