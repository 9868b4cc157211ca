#include "worker_runtime/comm/process_group.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <exception>
#include <iterator>
#include <memory>
#include <new>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/os/machine_identity.hpp"
#include "worker_runtime/comm/backends.hpp"
#include "worker_runtime/comm/exception_text.hpp"
#include "worker_runtime/comm/late_ranks.hpp"
#include "worker_runtime/comm/peer_watch.hpp"
#include "worker_runtime/comm/timed_group.hpp"

namespace ddprun {

namespace {

c10::intrusive_ptr<c10d::Store> make_store(const worker::WorkerEnvironment& place,
                                           const ProcessGroupOptions& options) {
    if (!place.store.has_value()) {
        return c10::make_intrusive<c10d::HashStore>();
    }
    c10d::TCPStoreOptions at;
    at.port = place.store->port;
    at.isServer = place.serves_store;
    at.multiTenant = true;  // A group that is made before the last one is gone shares its store.
    at.waitWorkers = false;
    at.timeout = options.join_timeout;
    auto store = c10::make_intrusive<c10d::TCPStore>(place.store->host, at);
    // A fresh store per generation is ddprun's promise, not every launcher's.
    return c10::make_intrusive<c10d::PrefixStore>(
        fmt::format("ddprun/{}", place.generation.value()), std::move(store));
}

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

/// True for a failure of this rank's device or memory, say of a kernel that ran before: no argument
/// is at fault, and the others wait for this rank.
bool is_device_failure(const std::exception& failure) {
    const std::string_view text(failure.what());
    return dynamic_cast<const c10::AcceleratorError*>(&failure) != nullptr ||
           dynamic_cast<const c10::OutOfMemoryError*>(&failure) != nullptr ||
           dynamic_cast<const std::bad_alloc*>(&failure) != nullptr ||
           std::any_of(kDeviceFailures.begin(), kDeviceFailures.end(),
                       [&](std::string_view begin) { return text.starts_with(begin); }) ||
           text.find("DefaultCPUAllocator: can't allocate memory") != std::string_view::npos;
}

/// Says on stderr that a connection could not be watched, if one could not.
void tell_unwatched(const worker::BackendPlace& at, std::size_t watched) {
    const auto all = static_cast<std::size_t>(at.world_size - 1);
    if (watched < all) {
        fmt::print(stderr,
                   "worker: rank {} of {}: {} of its {} connections to other ranks are watched; a "
                   "death at another one may be known by the collective's time-out only; those "
                   "ranks have ended already, or the hard limit of open files (ulimit -Hn) is too "
                   "low\n",
                   at.rank, at.world_size, watched, all);
        (void)std::fflush(stderr);
    }
}

/// True for tensors on a GPU that Gloo carries: c10d copies them to the CPU for a collective, but
/// has send() and recv() take the GPU's addresses for the CPU's.
bool is_sent_by_cpu(const worker::BackendPlace& at, const torch::Tensor& tensor) {
    return at.is_gpu_shared && tensor.is_cuda();
}

/// A store there is for workers of this machine alone.
bool is_loopback(const std::string& host) {
    return host == "localhost" || host == "::1" || host.starts_with("127.");
}

}  // namespace

struct ProcessGroup::State {
    c10::intrusive_ptr<c10d::Store> store;
    worker::BackendPlace at;
    c10::intrusive_ptr<worker::TimedGroup> group;
    c10::intrusive_ptr<c10d::Backend> gloo;
    std::shared_ptr<worker::Loss> loss = std::make_shared<worker::Loss>();
    std::shared_ptr<worker::PeerWatch> watch;
    torch::Device device = torch::kCPU;
    worker::StopBallot stop_ballot;
    std::shared_ptr<worker::BackgroundSaves> background_saves =
        std::make_shared<worker::BackgroundSaves>();
    std::shared_ptr<std::atomic<std::int64_t>> waited_ns =
        std::make_shared<std::atomic<std::int64_t>>(0);
    std::optional<Error> broken;
    bool is_finished = false;
    std::vector<std::shared_ptr<State>> parts;  ///< sub-groups that may not have ended
    int parts_made = 0;

    /// Connects to all others over Gloo; throws what c10d throws, with nothing left to cut: `group`
    /// is set after all else that cut() and end() need. A rank that `whole` loses, of which the
    /// group is to be a part, ends the connecting, too.
    static std::shared_ptr<State> connect(const c10::intrusive_ptr<c10d::Store>& store,
                                          const worker::BackendPlace& at, const std::string& name,
                                          worker::Loss* whole = nullptr) {
        auto state = std::make_shared<State>();
        state->store = store;
        state->at = at;
        worker::Gloo gloo = worker::make_gloo(c10::make_intrusive<c10d::PrefixStore>("gloo", store),
                                              at, whole != nullptr ? *whole : *state->loss);
        state->gloo = worker::make_guarded(std::move(gloo.backend), state->loss);
        state->watch = std::make_shared<worker::PeerWatch>(gloo.connections, state->loss);
        state->loss->explain_by([watch = std::weak_ptr(state->watch)](const std::string& failure) {
            const auto ours = watch.lock();
            return ours ? ours->explained(failure) : failure;
        });
        tell_unwatched(at, state->watch->watched());
        const auto group = c10::make_intrusive<worker::TimedGroup>(store, at.rank, at.world_size);
        group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO, state->gloo);
        group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
        group->setGroupName(name);
        state->group = group;
        return state;
    }

    /// Connects for tensors on this rank's GPU, if it has one; throws what c10d throws.
    void use_gpu() {
        if (at.gpu >= 0) {
            worker::connect_gpu(*group, *loss, store, at);
            device = torch::Device(torch::kCUDA, static_cast<c10::DeviceIndex>(at.gpu));
            if (!at.is_gpu_shared) {
                group->use(deadlines_for_gpu());
            }
        }
        // All ranks are here. A collective, or a part of one, is all that waits from now on.
        gloo->setTimeout(at.timeout);
        store->setTimeout(at.timeout);
    }

    // A group that did not end in order may have a collective that never will, for which Gloo's
    // destructor would wait: it stays until the process ends.
    ~State() {
        if (!is_finished && group) {
            cut("its owner has let the group go");
            (void)group.release();
        }
    }

    Error broken_by(const std::string& what, const std::exception& failure) {
        const std::string reason = watch->explained(worker::first_line(failure));
        broken = Error{
            ErrorCode::ConnectionLost,
            fmt::format("{} failed on rank {} of {}: {}; a peer died, was late, or called another "
                        "collective",
                        what, at.rank, at.world_size, reason)};
        cut(reason);
        return *broken;
    }

    Error broken_by_device(const std::string& what, const std::exception& failure) {
        broken = Error{ErrorCode::System,
                       fmt::format("{} failed on rank {} of {}: {}; the group is cut, so that the "
                                   "other ranks do not wait for this one; end the process",
                                   what, at.rank, at.world_size, worker::first_line(failure))};
        cut(worker::first_line(failure));
        return *broken;
    }

    /// Gloo ends a collective that is late by itself.
    [[nodiscard]] std::unique_ptr<worker::WorkDeadlines> deadlines_for_gpu() const {
        return std::make_unique<worker::WorkDeadlines>(
            at.timeout, [store = store, at = at, gloo = gloo,
                         watch = watch](const c10::intrusive_ptr<c10d::Work>& late) {
                const std::uint64_t number = late->getSequencenumber();
                cut(*gloo, *watch,
                    fmt::format("collective {} ({}) is not done after {} ms: {}", number,
                                c10d::opTypeToString(late->retrieveOpType()), at.timeout.count(),
                                worker::name_late_ranks(store, at, number)));
            });
    }

    /// The GPU's engine is aborted by `loss`.
    void cut(const std::string& why) { cut(*gloo, *watch, why); }

    static void cut(c10d::Backend& gloo, worker::PeerWatch& watch, const std::string& why) {
        watch.expect_cut();
        try {
            gloo.abort();
        } catch (const std::exception&) {
            // A broken group cannot be broken further.
        }
        watch.cut(why);
    }

    /// Expects connections to end: no rank closes a connection before all ranks have called this.
    void stand_down() {
        watch->stand_down();
        for (const std::shared_ptr<State>& part : parts) {
            part->stand_down();
        }
    }

    void end() {
        for (const std::shared_ptr<State>& part : parts) {
            if (!part->broken.has_value()) {
                part->end();
            }
        }
        if (!is_finished) {
            is_finished = true;
            group->shutdown();
        }
    }
};

ProcessGroup::ProcessGroup(std::shared_ptr<State> state) : state_(std::move(state)) {}

Result<ProcessGroup> ProcessGroup::join(const worker::WorkerEnvironment& place, Backend backend,
                                        const ProcessGroupOptions& options) {
    const std::string who = fmt::format("rank {} of {}", place.rank.value(), place.world_size);
    try {
        const Result<worker::Gpu> gpu = backend == Backend::Gloo
                                            ? Result<worker::Gpu>()
                                            : worker::take_gpu(place.local_rank.value());
        if (!gpu) {
            return gpu.error();
        }
        if (backend == Backend::Nccl && gpu->number < 0) {
            return Error{
                ErrorCode::InvalidArgument,
                fmt::format("{} cannot use NCCL: it sees no GPU, or this program was built "
                            "without NCCL; use Backend::Auto or Backend::Gloo",
                            who)};
        }
        const bool is_here_only = !place.store || is_loopback(place.store->host);
        const worker::BackendPlace at{
            .rank = place.rank.value(),
            .world_size = place.world_size,
            .gpu = gpu->number,
            .local_address =
                place.local_address.empty() && is_here_only ? "127.0.0.1" : place.local_address,
            .join_timeout = options.join_timeout,
            .timeout = options.timeout,
        };
        const auto state = State::connect(make_store(place, options), at,
                                          fmt::format("ddprun/{}", place.generation.value()));
        ProcessGroup group(state);
        if (backend != Backend::Gloo) {
            const Result<bool> is_shared = worker::agree_on_gpus(
                group, {.host = host_name(), .uuid = gpu->uuid}, options.allow_shared_gpus);
            if (!is_shared) {
                return is_shared.error();
            }
            state->at.is_gpu_shared = *is_shared && backend == Backend::Auto;
        }
        state->use_gpu();
        return group;
    } catch (const std::exception& failure) {
        const std::string store =
            place.store ? fmt::format("{}:{}", place.store->host, place.store->port) : "its own";
        return Error{ErrorCode::ConnectionLost,
                     fmt::format("{} could not join its process group through the store {}: {}",
                                 who, store, worker::first_line(failure))};
    }
}

int ProcessGroup::rank() const {
    return state_->group->getRank();
}

int ProcessGroup::world_size() const {
    return state_->group->getSize();
}

torch::Device ProcessGroup::device() const {
    return state_->device;
}

c10::intrusive_ptr<c10d::ProcessGroup> ProcessGroup::c10d() const {
    return state_->group;
}

worker::StopBallot& ProcessGroup::stop_ballot() const {
    return state_->stop_ballot;
}

worker::BackgroundSaves& ProcessGroup::background_saves() const {
    return *state_->background_saves;
}

Result<void> ProcessGroup::collective(
    const std::string& what, const std::function<c10::intrusive_ptr<c10d::Work>()>& begin) {
    if (state_->broken.has_value()) {
        return *state_->broken;
    }
    if (state_->is_finished) {
        return Error{ErrorCode::InvalidArgument, what + ": the process group is finished"};
    }
    c10::intrusive_ptr<c10d::Work> work;
    try {
        state_->loss->check();
        work = begin();
    } catch (const c10::DistError& failure) {
        return state_->broken_by(what, failure);
    } catch (const std::exception& failure) {
        if (is_device_failure(failure)) {
            return state_->broken_by_device(what, failure);
        }
        return Error{ErrorCode::InvalidArgument,
                     fmt::format("{} was refused on rank {} of {}: {}", what, rank(), world_size(),
                                 worker::first_line(failure))};
    }
    try {
        if (work) {
            const auto begun = std::chrono::steady_clock::now();
            work->wait();
            // On a GPU only its stream waits, and this returns at once.
            if (state_->device.is_cpu()) {
                state_->waited_ns->fetch_add(
                    std::chrono::nanoseconds(std::chrono::steady_clock::now() - begun).count());
            }
        }
    } catch (const std::exception& failure) {
        return is_device_failure(failure) ? state_->broken_by_device(what, failure)
                                          : state_->broken_by(what, failure);
    }
    return check(what);
}

Result<void> ProcessGroup::check(const std::string& what) {
    if (state_->broken.has_value()) {
        return *state_->broken;
    }
    try {
        state_->loss->check();
        return {};
    } catch (const std::exception& failure) {
        return state_->broken_by(what, failure);
    }
}

Result<double> ProcessGroup::read(const std::string& what, const torch::Tensor& tensor) {
    double number = 0;
    try {
        number = tensor.item<double>();
    } catch (const std::exception& failure) {
        return is_device_failure(failure) ? state_->broken_by_device(what, failure)
                                          : state_->broken_by(what, failure);
    }
    if (const Result<void> whole = check(what); !whole) {
        return whole.error();
    }
    return number;
}

const std::shared_ptr<worker::Loss>& ProcessGroup::loss() const {
    return state_->loss;
}

std::size_t ProcessGroup::watched_connections() const {
    return state_->watch->watched();
}

const std::shared_ptr<std::atomic<std::int64_t>>& ProcessGroup::waited_ns() const {
    return state_->waited_ns;
}

bool ProcessGroup::has_mean(torch::Device device) const {
    return !device.is_cpu() && state_->group->getBackend(device.type())->getBackendName() == "nccl";
}

Result<void> ProcessGroup::reducing(
    const std::string& what, const torch::Tensor& tensor, Reduction reduction,
    const std::function<c10::intrusive_ptr<c10d::Work>(c10d::ReduceOp)>& begin,
    const std::function<torch::Tensor()>& result) {
    bool divides = false;
    const Result<void> done = collective(what, [&] {
        TORCH_CHECK(reduction != Reduction::Mean || tensor.is_floating_point(),
                    "a mean of integers (", tensor.scalar_type(),
                    ") is not one; sum them up, or convert them first");
        divides = reduction == Reduction::Mean && !has_mean(tensor.device());
        return begin(reduce_op(divides ? Reduction::Sum : reduction));
    });
    if (done && divides) {
        const torch::NoGradGuard no_grad;
        result().div_(world_size());
    }
    return done;
}

Result<void> ProcessGroup::all_reduce(torch::Tensor& tensor, Reduction reduction) {
    const auto begin = [&](c10d::ReduceOp op) {
        std::vector<torch::Tensor> tensors{tensor};
        return state_->group->allreduce(tensors, {.reduceOp = std::move(op)});
    };
    return reducing("all_reduce", tensor, reduction, begin, [&] { return tensor; });
}

Result<void> ProcessGroup::reduce(torch::Tensor& tensor, int root, Reduction reduction) {
    const auto begin = [&](c10d::ReduceOp op) {
        std::vector<torch::Tensor> tensors{tensor};
        return state_->group->reduce(tensors, {.reduceOp = std::move(op), .rootRank = root});
    };
    return reducing("reduce", tensor, reduction, begin, [&] { return tensor; });
}

Result<void> ProcessGroup::broadcast(torch::Tensor& tensor, int root) {
    return collective("broadcast", [&] {
        std::vector<torch::Tensor> tensors{tensor};
        return state_->group->broadcast(tensors, {.rootRank = root});
    });
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

/// Over the first dimension, in the type of `rows`.
torch::Tensor reduced(const torch::Tensor& rows, Reduction reduction) {
    switch (reduction) {
        case Reduction::Sum:
            break;
        case Reduction::Mean:
            return rows.mean(0);
        case Reduction::Min:
            return rows.amin(0);
        case Reduction::Max:
            return rows.amax(0);
        case Reduction::Product:
            return rows.prod(0, /*keepdim=*/false, rows.scalar_type());
    }
    return rows.sum(0, /*keepdim=*/false, rows.scalar_type());
}

void check_rank(int other, int rank, int world_size) {
    TORCH_CHECK(other >= 0 && other < world_size && other != rank, "rank ", other,
                " is not another rank of this group of ", world_size);
}

std::int64_t sum_of(const std::vector<std::int64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

/// As group.collective(), with the tensor that `begin` makes for the result.
template <typename Begin>
Result<torch::Tensor> result_of(ProcessGroup& group, const std::string& what, const Begin& begin) {
    torch::Tensor result;
    const Result<void> done = group.collective(what, [&] { return begin(result); });
    return done ? Result<torch::Tensor>(result) : done.error();
}

}  // namespace

Result<torch::Tensor> ProcessGroup::all_gather(const torch::Tensor& tensor) {
    return result_of(*this, "all_gather", [&](torch::Tensor& gathered) {
        gathered = room_for_all(tensor, world_size());
        std::vector<std::vector<torch::Tensor>> outputs{gathered.unbind(0)};
        std::vector<torch::Tensor> inputs{tensor.contiguous()};
        return state_->group->allgather(outputs, inputs, {});
    });
}

Result<torch::Tensor> ProcessGroup::gather(const torch::Tensor& tensor, int root) {
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

Result<void> ProcessGroup::scatter(torch::Tensor& tensor, const torch::Tensor& parts, int root) {
    return collective("scatter", [&] {
        std::vector<torch::Tensor> outputs{tensor};
        std::vector<std::vector<torch::Tensor>> inputs;
        if (rank() == root) {
            inputs.push_back(parts_of(parts, world_size()));
        }
        return state_->group->scatter(outputs, inputs, {.rootRank = root});
    });
}

Result<torch::Tensor> ProcessGroup::reduce_scatter(const torch::Tensor& parts,
                                                   Reduction reduction) {
    torch::Tensor own;
    std::vector<torch::Tensor> inputs;
    const auto begin = [&](c10d::ReduceOp op) -> c10::intrusive_ptr<c10d::Work> {
        inputs = parts_of(parts, world_size());
        own = torch::empty_like(inputs.front());
        if (parts.is_cpu()) {
            return nullptr;  // below
        }
        std::vector<std::vector<torch::Tensor>> lists{inputs};
        std::vector<torch::Tensor> outputs{own};
        return state_->group->reduce_scatter(outputs, lists, {.reduceOp = std::move(op)});
    };
    const Result<void> done =
        reducing("reduce_scatter", parts, reduction, begin, [&] { return own; });
    if (!done) {
        return done.error();
    }
    if (!parts.is_cpu()) {
        return own;
    }
    // Gloo's own sums up everything on each rank, and reports no dead peer.
    const Result<torch::Tensor> rows = all_to_all(parts);
    if (!rows) {
        return rows.error();
    }
    return reduced(*rows, reduction);
}

Result<torch::Tensor> ProcessGroup::all_to_all(const torch::Tensor& parts) {
    const std::vector<std::int64_t> one_each(static_cast<std::size_t>(world_size()), 1);
    return all_to_all(parts, one_each, one_each);
}

Result<torch::Tensor> ProcessGroup::all_to_all(const torch::Tensor& rows,
                                               const std::vector<std::int64_t>& send_rows,
                                               const std::vector<std::int64_t>& receive_rows) {
    return result_of(*this, "all_to_all", [&](torch::Tensor& received) {
        const auto world = static_cast<std::size_t>(world_size());
        TORCH_CHECK(send_rows.size() == world && receive_rows.size() == world,
                    "counts of rows are needed for ", world, " ranks, and there are ",
                    send_rows.size(), " to send and ", receive_rows.size(), " to receive");
        TORCH_CHECK(rows.defined() && rows.dim() > 0 && rows.size(0) == sum_of(send_rows),
                    "the rows to send are ", sum_of(send_rows), ", but the tensor has ",
                    rows.defined() && rows.dim() > 0 ? rows.size(0) : 0);
        std::vector<std::int64_t> shape(rows.sizes().begin(), rows.sizes().end());
        shape.front() = sum_of(receive_rows);
        received = torch::empty(shape, rows.options().requires_grad(false));
        torch::Tensor input = rows.detach().contiguous();
        std::vector<std::int64_t> receives = receive_rows;
        std::vector<std::int64_t> sends = send_rows;
        return state_->group->alltoall_base(received, input, receives, sends, {});
    });
}

Result<void> ProcessGroup::send(const torch::Tensor& tensor, int to, int tag) {
    return collective("send", [&] {
        check_rank(to, rank(), world_size());
        std::vector<torch::Tensor> tensors{
            is_sent_by_cpu(state_->at, tensor) ? tensor.contiguous().cpu() : tensor.contiguous()};
        return state_->group->send(tensors, to, tag);
    });
}

Result<void> ProcessGroup::recv(torch::Tensor& tensor, int from, int tag) {
    torch::Tensor received = tensor;
    Result<void> done = collective("recv", [&] {
        check_rank(from, rank(), world_size());
        if (is_sent_by_cpu(state_->at, tensor)) {
            received = torch::empty_like(tensor, torch::kCPU);
        }
        std::vector<torch::Tensor> tensors{received};
        return state_->group->recv(tensors, from, tag);
    });
    if (!done || received.is_same(tensor)) {
        return done;
    }
    try {
        const torch::NoGradGuard no_grad;
        tensor.copy_(received);
        return {};
    } catch (const std::exception& failure) {
        return is_device_failure(failure)
                   ? state_->broken_by_device("recv", failure)
                   : Error{ErrorCode::InvalidArgument,
                           fmt::format("recv: rank {} of {} cannot write the tensor: {}", rank(),
                                       world_size(), worker::first_line(failure))};
    }
}

Result<void> ProcessGroup::barrier() {
    return collective("barrier", [&] {
        c10d::BarrierOptions options;
        if (!state_->at.is_gpu_shared) {
            // Else c10d takes the current GPU of this thread: GPU 0 if another one has joined.
            options.device = state_->device;
        }
        return state_->group->barrier(options);
    });
}

Result<std::optional<ProcessGroup>> ProcessGroup::subgroup(const std::vector<int>& ranks) {
    const std::set<int> members(ranks.begin(), ranks.end());
    const bool is_possible = !members.empty() && members.size() == ranks.size() &&
                             *members.begin() >= 0 && *members.rbegin() < world_size();
    // All ranks send what they ask for, so that none waits for a rank that asks for something else.
    torch::Tensor asked = torch::full({world_size()}, is_possible ? 0 : -1, torch::kInt64);
    for (const int member : is_possible ? members : std::set<int>()) {
        asked[member] = 1;
    }
    const Result<torch::Tensor> all = all_gather(asked);
    if (!all) {
        return all.error();
    }
    const std::string what = fmt::format("a sub-group of ranks {} was refused on rank {} of {}",
                                         fmt::join(ranks, ", "), rank(), world_size());
    if (!is_possible) {
        return Error{
            ErrorCode::InvalidArgument,
            fmt::format("{}: name at least one rank, each once, below {}", what, world_size())};
    }
    for (int other = 0; other < world_size(); ++other) {
        if (!torch::equal((*all)[other], asked)) {
            return Error{ErrorCode::InvalidArgument,
                         fmt::format("{}: rank {} asks for others; every rank of the group must "
                                     "ask for the same sub-groups in the same order",
                                     what, other)};
        }
    }
    const auto own = members.find(rank());
    if (own == members.end()) {
        ++state_->parts_made;
        return std::optional<ProcessGroup>();
    }
    worker::BackendPlace at = state_->at;
    at.rank = static_cast<int>(std::distance(members.begin(), own));
    at.world_size = static_cast<int>(members.size());
    const Result<std::shared_ptr<State>> part =
        connect_part(at, fmt::format("making a sub-group of ranks {}", fmt::join(ranks, ", ")));
    if (!part) {
        return part.error();
    }
    (*part)->stop_ballot.is_adding_up = state_->stop_ballot.is_adding_up;
    (*part)->background_saves = state_->background_saves;
    (*part)->waited_ns = state_->waited_ns;
    return std::optional(ProcessGroup(*part));
}

Result<ProcessGroup> ProcessGroup::gloo_twin() {
    worker::BackendPlace at = state_->at;
    at.gpu = -1;
    const Result<std::shared_ptr<State>> part = connect_part(at, "connecting once more");
    return part ? Result<ProcessGroup>(ProcessGroup(*part)) : part.error();
}

Result<std::shared_ptr<ProcessGroup::State>> ProcessGroup::connect_part(
    const worker::BackendPlace& at, const std::string& what) {
    if (state_->broken.has_value()) {
        return *state_->broken;
    }
    const int number = state_->parts_made++;
    try {
        const auto part = State::connect(
            c10::make_intrusive<c10d::PrefixStore>(fmt::format("part/{}", number), state_->store),
            at, fmt::format("{}/{}", state_->group->getGroupName(), number), state_->loss.get());
        part->use_gpu();
        std::erase_if(state_->parts, [](const auto& earlier) { return earlier->is_finished; });
        state_->parts.push_back(part);
        state_->loss->carry_on_to(part->watch);
        return part;
    } catch (const std::exception& failure) {
        return state_->broken_by(what, failure);
    }
}

ProcessGroup::LongerWait::LongerWait(const ProcessGroup& group, std::chrono::milliseconds at_least)
    : state_(*group.state_) {
    // 0 is none.
    if (state_.at.timeout.count() > 0) {
        state_.gloo->setTimeout(std::max(state_.at.timeout, at_least));
    }
}

ProcessGroup::LongerWait::~LongerWait() {
    state_.gloo->setTimeout(state_.at.timeout);
}

Result<void> ProcessGroup::finish() {
    if (state_->is_finished) {
        return {};
    }
    state_->background_saves->before_end();
    Result<void> done = barrier();
    if (done) {
        state_->stand_down();
        // Over Gloo, whose connections end with a peer that dies here: the watch says nothing now.
        done = collective("barrier", [&] { return state_->gloo->barrier(c10d::BarrierOptions()); });
    }
    if (done) {
        state_->end();
    }
    return done;
}

}  // namespace ddprun
