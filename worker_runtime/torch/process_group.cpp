#include "worker_runtime/torch/process_group.hpp"

#include <limits.h>
#include <unistd.h>

#include <array>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "worker_runtime/torch/backends.hpp"
#include "worker_runtime/torch/exception_text.hpp"
#include "worker_runtime/torch/gpu_agreement.hpp"
#include "worker_runtime/torch/peer_watch.hpp"

namespace ddprun {

namespace {

c10::intrusive_ptr<c10d::Store> make_store(const worker::WorkerEnvironment& place,
                                           const ProcessGroupOptions& options) {
    if (!place.store.has_value()) {
        return c10::make_intrusive<c10d::HashStore>();
    }
    c10d::TCPStoreOptions client;
    client.port = place.store->port;
    client.isServer = false;
    client.waitWorkers = false;
    client.timeout = options.join_timeout;
    auto store = c10::make_intrusive<c10d::TCPStore>(place.store->host, client);
    // A fresh store per generation is ddprun's promise, not every launcher's.
    return c10::make_intrusive<c10d::PrefixStore>(
        fmt::format("ddprun/{}", place.generation.value()), std::move(store));
}

std::string host_name() {
    std::array<char, HOST_NAME_MAX + 1> name{};
    return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

c10d::ReduceOp reduce_op(Reduction reduction) {
    switch (reduction) {
        case Reduction::Sum:
            break;
        case Reduction::Min:
            return c10d::ReduceOp::MIN;
        case Reduction::Max:
            return c10d::ReduceOp::MAX;
    }
    return c10d::ReduceOp::SUM;
}

using Future = c10::ivalue::Future;

/// Ends waits for collectives when a connection is lost, whatever the engine does. From any thread.
class Loss : public std::enable_shared_from_this<Loss> {
public:
    c10::intrusive_ptr<Future> unless_lost(const c10::intrusive_ptr<Future>& inner) {
        auto outer = c10::make_intrusive<Future>(inner->elementType());
        {
            const std::lock_guard lock(mutex_);
            if (error_) {
                outer->setError(error_);
                return outer;
            }
            pending_.emplace(outer.get(), outer);
        }
        inner->addCallback([loss = shared_from_this(), key = outer.get()](Future& done) {
            const c10::intrusive_ptr<Future> waiting = loss->take(key);
            if (!waiting) {
                return;  // told already
            }
            if (done.hasError()) {
                waiting->setError(done.exception_ptr());
            } else {
                waiting->markCompleted(done.constValue());
            }
        });
        return outer;
    }

    void lose(const std::string& what) {
        std::map<const Future*, c10::intrusive_ptr<Future>> waiting;
        {
            const std::lock_guard lock(mutex_);
            error_ = std::make_exception_ptr(std::runtime_error(what));
            waiting.swap(pending_);
        }
        for (const auto& [key, future] : waiting) {
            future->setError(error_);
        }
    }

private:
    c10::intrusive_ptr<Future> take(const Future* key) {
        const std::lock_guard lock(mutex_);
        const auto node = pending_.extract(key);
        return node ? node.mapped() : c10::intrusive_ptr<Future>();
    }

    std::mutex mutex_;
    std::exception_ptr error_;
    std::map<const Future*, c10::intrusive_ptr<Future>> pending_;
};

}  // namespace

struct ProcessGroup::State {
    c10::intrusive_ptr<c10d::ProcessGroup> group;
    std::shared_ptr<Loss> loss = std::make_shared<Loss>();
    std::unique_ptr<worker::PeerWatch> watch;
    torch::Device device = torch::kCPU;
    worker::StopBallot stop_ballot;
    std::optional<Error> broken;
    bool is_finished = false;

    // A group that did not end in order may have a collective that never will, for which Gloo's
    // destructor would wait: it stays until the process ends.
    ~State() {
        if (!is_finished && group) {
            cut();
            (void)group.release();
        }
    }

    /// Throws what the collective throws, or that a peer's connection is lost.
    void wait(const c10::intrusive_ptr<c10d::Work>& work) const {
        if (device.is_cpu() && group->getSize() > 1) {
            loss->unless_lost(work->getFuture())->waitAndThrow();
        } else {
            work->wait();
        }
    }

    Error broken_by(const std::string& what, const std::exception& failure) {
        broken = Error{
            ErrorCode::ConnectionLost,
            fmt::format("{} failed on rank {} of {}: {}; a peer died, was late, or called another "
                        "collective",
                        what, group->getRank(), group->getSize(), worker::first_line(failure))};
        cut();
        return *broken;
    }

    void cut() {
        try {
            group->abort();
        } catch (const std::exception&) {
            // What breaks a broken group further is no news.
        }
        if (watch) {
            watch->cut();
        }
    }
};

ProcessGroup::ProcessGroup(std::shared_ptr<State> state) : state_(std::move(state)) {}

Result<ProcessGroup> ProcessGroup::join(const worker::WorkerEnvironment& place, Backend backend,
                                        const ProcessGroupOptions& options) {
    const std::string who = fmt::format("rank {} of {}", place.rank.value(), place.world_size);
    try {
        std::optional<int> gpu;
        worker::RankGpu mine{.host = host_name(), .uuid = {}};
        if (backend != Backend::Gloo) {
            gpu = worker::gpu_of(place.local_rank.value());
        }
        if (gpu.has_value()) {
            if (Result<void> fits = worker::check_nccl(); !fits) {
                return fits.error();
            }
            mine.uuid = worker::take_gpu(*gpu);
        }
        if (backend == Backend::Nccl && !gpu.has_value()) {
            return Error{
                ErrorCode::InvalidArgument,
                fmt::format("{} cannot use NCCL: it sees no GPU, or this program was built "
                            "without NCCL; use Backend::Auto or Backend::Gloo",
                            who)};
        }
        const c10::intrusive_ptr<c10d::Store> store = make_store(place, options);
        worker::BackendPlace at{
            .rank = place.rank.value(),
            .world_size = place.world_size,
            .gpu = gpu.value_or(-1),
            .local_address = place.store ? place.local_address : "127.0.0.1",
            .join_timeout = options.join_timeout,
            .timeout = options.timeout,
        };
        auto state = std::make_shared<State>();
        const std::set<int> before = worker::open_descriptors();
        state->group = c10::make_intrusive<c10d::ProcessGroup>(store, at.rank, at.world_size);
        state->group->setBackend(
            c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO,
            worker::make_gloo(c10::make_intrusive<c10d::PrefixStore>("gloo", store), at));
        state->group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
        state->watch = std::make_unique<worker::PeerWatch>(
            before, [loss = state->loss](const std::string& what) { loss->lose(what); });
        state->group->setGroupName(fmt::format("ddprun/{}", place.generation.value()));
        ProcessGroup group(state);
        if (backend != Backend::Gloo) {
            const Result<bool> is_shared =
                worker::agree_on_gpus(group, mine, options.allow_shared_gpus);
            if (!is_shared) {
                return is_shared.error();
            }
            at.is_gpu_shared = *is_shared && backend == Backend::Auto;
        }
        if (gpu.has_value()) {
            worker::connect_gpu(*state->group, store, at);
            state->device = torch::Device(torch::kCUDA, static_cast<c10::DeviceIndex>(*gpu));
        }
        // Everybody is here. What waits for the store from now on is part of a collective.
        store->setTimeout(options.timeout);
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

const c10::intrusive_ptr<c10d::ProcessGroup>& ProcessGroup::c10d() const {
    return state_->group;
}

worker::StopBallot& ProcessGroup::stop_ballot() const {
    return state_->stop_ballot;
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
        work = begin();
    } catch (const c10::DistError& failure) {
        return state_->broken_by(what, failure);
    } catch (const std::exception& failure) {
        return Error{ErrorCode::InvalidArgument,
                     fmt::format("{} was refused on rank {} of {}: {}", what, rank(), world_size(),
                                 worker::first_line(failure))};
    }
    try {
        if (work) {
            state_->wait(work);
        }
        return {};
    } catch (const std::exception& failure) {
        return state_->broken_by(what, failure);
    }
}

c10::intrusive_ptr<c10::ivalue::Future> ProcessGroup::unless_lost(
    const c10::intrusive_ptr<c10::ivalue::Future>& future) const {
    return state_->loss->unless_lost(future);
}

Result<void> ProcessGroup::all_reduce(torch::Tensor& tensor, Reduction reduction) {
    return collective("all_reduce", [&] {
        std::vector<torch::Tensor> tensors{tensor};
        c10d::AllreduceOptions options;
        options.reduceOp = reduce_op(reduction);
        return state_->group->allreduce(tensors, options);
    });
}

Result<void> ProcessGroup::broadcast(torch::Tensor& tensor, int root) {
    return collective("broadcast", [&] {
        std::vector<torch::Tensor> tensors{tensor};
        c10d::BroadcastOptions options;
        options.rootRank = root;
        return state_->group->broadcast(tensors, options);
    });
}

Result<torch::Tensor> ProcessGroup::all_gather(const torch::Tensor& tensor) {
    torch::Tensor gathered;
    const Result<void> done = collective("all_gather", [&] {
        std::vector<std::int64_t> shape{world_size()};
        shape.insert(shape.end(), tensor.sizes().begin(), tensor.sizes().end());
        gathered = torch::empty(shape, tensor.options());
        std::vector<std::vector<torch::Tensor>> outputs{gathered.unbind(0)};
        std::vector<torch::Tensor> inputs{tensor.contiguous()};
        return state_->group->allgather(outputs, inputs);
    });
    if (!done) {
        return done.error();
    }
    return gathered;
}

Result<void> ProcessGroup::barrier() {
    return collective("barrier", [&] { return state_->group->barrier(); });
}

Result<void> ProcessGroup::finish() {
    if (state_->is_finished) {
        return {};
    }
    Result<void> done = barrier();
    if (done) {
        // Nobody closes a connection before everybody expects it.
        state_->watch->stand_down();
        done = barrier();
    }
    if (done) {
        state_->is_finished = true;
        state_->group->shutdown();
    }
    return done;
}

}  // namespace ddprun
