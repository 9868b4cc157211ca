#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <c10/core/DeviceGuard.h>
#include <torch/data/dataloader/base.h>
#include <torch/data/worker_exception.h>
#include <torch/types.h>

#include "base/runtime_limits.hpp"
#include "worker_runtime/data/distributed_sampler.hpp"
#include "worker_runtime/nn/output_tensors.hpp"

namespace ddprun {

struct DataLoaderOptions {
    std::int64_t batch_size = 1;
    /// Threads that make batches ahead, each with its own copy of the data set. If 0, next()
    /// makes them.
    int workers = 0;
    /// So many batches per worker are made ahead.
    int prefetch = 2;
    /// The device of the batches. For a GPU they are put into pinned memory, from which
    /// `to(device, true)` copies while the GPU computes.
    torch::Device device = torch::kCPU;
};

namespace worker {

/// True for a type that owns at most one object alone. The object of another pointer may be shared:
/// another thread may read it meanwhile, and it may point back.
template <typename T>
inline constexpr bool kOwnsOne = false;
template <typename T>
inline constexpr bool kOwnsOne<std::optional<T>> = true;
template <typename T, typename Deleter>
inline constexpr bool kOwnsOne<std::unique_ptr<T, Deleter>> = !std::is_array_v<T>;

/// Has `change` replace every tensor of a batch: in tensors, torch's examples, and any nest of
/// optionals, unique_ptrs, pairs, tuples, arrays, containers, maps (their values) and structs
/// without constructors. Left as they are: what is const, what other pointers point to, c10::List,
/// c10::Dict, and other classes but for their public `data` and `target`. Other classes are also
/// structs with a constructor, with a base class, with more than 8 fields, or with more than
/// kValuesMax values where each element of an array counts. An unnamed union does not compile in a
/// struct that has no constructor.
template <typename Batch, typename Change>
void change_tensors(Batch& batch, const Change& change) {
    if constexpr (std::is_same_v<Batch, torch::Tensor>) {
        batch = batch.defined() ? change(batch) : batch;
    } else if constexpr (std::is_const_v<Batch> || holds_no_tensor<Batch>()) {
        // No tensor in it that could be replaced.
    } else if constexpr (std::is_array_v<Batch>) {
        for (auto& element : batch) {
            change_tensors(element, change);
        }
    } else if constexpr (requires { std::tuple_size<Batch>::value; }) {
        std::apply([&change](auto&... part) { (change_tensors(part, change), ...); }, batch);
    } else if constexpr (kOwnsOne<Batch>) {
        if (batch) {
            change_tensors(*batch, change);
        }
    } else if constexpr (requires { batch.begin() != batch.end(); }) {
        for (auto&& element : batch) {
            change_tensors(element, change);
        }
    } else if constexpr (requires {
                             batch.key();
                             batch.value();
                         }) {
        auto&& value = batch.value();  // of torch::OrderedDict
        change_tensors(value, change);
    } else if constexpr (has_visible_fields<Batch>()) {
        visit_fields(batch, [&change](auto& field) { change_tensors(field, change); });
    } else if constexpr (requires { batch.data; }) {  // torch::data::Example is one
        change_tensors(batch.data, change);
        if constexpr (requires { batch.target; }) {
            change_tensors(batch.target, change);
        }
    }
}

/// A data set whose batches are in pinned memory if they will go to a GPU.
template <typename Dataset>
struct PinnedDataset {
    using BatchType = typename Dataset::BatchType;

    Dataset dataset;
    torch::Device device;

    BatchType get_batch(const std::vector<std::size_t>& indices) {
        BatchType batch = dataset.get_batch(indices);
        if (device.is_cuda()) {
            const c10::DeviceGuard guard(device);  // else the thread would use GPU 0, too
            change_tensors(batch, [](const torch::Tensor& tensor) { return tensor.pin_memory(); });
        }
        return batch;
    }
};

/// LibTorch's loader, walking ahead of the training with a sampler of its own.
template <typename Dataset>
class BatchMaker : public torch::data::DataLoaderBase<Dataset, typename Dataset::BatchType,
                                                      std::vector<std::size_t>> {
public:
    using Base =
        torch::data::DataLoaderBase<Dataset, typename Dataset::BatchType, std::vector<std::size_t>>;

    BatchMaker(const Dataset& dataset, const DistributedSampler& sampler,
               const DataLoaderOptions& options)
        : Base(torch::data::DataLoaderOptions(static_cast<std::size_t>(options.batch_size))
                   .workers(static_cast<std::size_t>(options.workers))
                   .max_jobs(static_cast<std::size_t>(options.workers) *
                             static_cast<std::size_t>(options.prefetch)),
               options.workers == 0 ? std::make_unique<Dataset>(dataset) : nullptr),
          ahead_(sampler) {
        for (int i = 0; i < options.workers; ++i) {
            this->workers_.emplace_back(
                [this, data = dataset]() mutable { this->worker_thread(data); });
        }
    }

    /// Forgets what was made and begins where `sampler` is.
    void start_at(const DistributedSampler& sampler) {
        this->shuttle_.drain();
        ahead_ = sampler;
        this->reset();
    }

    using Base::next;

private:
    std::optional<std::vector<std::size_t>> get_batch_request() override {
        return ahead_.next(this->options_.batch_size);
    }

    DistributedSampler ahead_;
};

}  // namespace worker

/// Gives the batches of a sampler in its order, made ahead by threads: LibTorch's data loader, but
/// one that can be resumed. The sampler moves on by a batch when next() gives that batch, whatever
/// is made ahead; so a checkpoint that holds the sampler holds the loader's place, and after a kill
/// with batches in flight each sample is trained on exactly once. If other code
/// moves the sampler, say Checkpoints::resume() or set_epoch(), the loader begins again there.
///
///     ddprun::DataLoader loader(images.map(Stack<>()), sampler, {.batch_size = 32, .workers = 2});
///     while (auto batch = loader.next()) { … }
///
/// `Dataset` is one of torch::data's, with get_batch(); it is copied for each worker. The sampler
/// outlives the loader. One thread, besides its own.
template <typename Dataset>
class DataLoader {
public:
    using Batch = typename Dataset::BatchType;

    /// Throws for options that are out of range.
    DataLoader(Dataset dataset, DistributedSampler& sampler, const DataLoaderOptions& options)
        : sampler_(sampler),
          batch_size_(options.batch_size),
          maker_({std::move(dataset), options.device}, sampler, checked_options(options)) {}

    /// The next batch, waited for if need be; none at the end of the epoch. An exception of the
    /// data set is thrown here, in place of its batch; the sampler is then still before that batch.
    std::optional<Batch> next() {
        if (at_ != sampler_.position()) {
            maker_.start_at(sampler_);
        }
        at_.reset();
        std::optional<Batch> batch;
        try {
            batch = maker_.next();
        } catch (const torch::data::WorkerException& failure) {
            std::rethrow_exception(failure.original_exception);
        }
        if (batch.has_value()) {
            (void)sampler_.next_batch(batch_size_);
        }
        at_ = sampler_.position();
        return batch;
    }

private:
    static const DataLoaderOptions& checked_options(const DataLoaderOptions& options) {
        const worker::RuntimeLimits limits;
        TORCH_CHECK(options.batch_size >= 1, "a data loader's batch size is ", options.batch_size,
                    "; give 1 or more");
        TORCH_CHECK(options.workers >= 0 && options.workers <= limits.loader_workers_max,
                    "a data loader has ", options.workers, " workers; give 0 to ",
                    limits.loader_workers_max);
        TORCH_CHECK(options.prefetch >= 1 && options.prefetch <= limits.loader_batches_max &&
                        options.workers * options.prefetch <= limits.loader_batches_max,
                    "a data loader of ", options.workers, " workers is to make ", options.prefetch,
                    " batches ahead for each; give 1 or more, and at most ",
                    limits.loader_batches_max, " for all");
        return options;
    }

    DistributedSampler& sampler_;
    std::int64_t batch_size_;
    std::optional<SamplerPosition> at_;  ///< where the next batch begins; none: not known
    worker::BatchMaker<worker::PinnedDataset<Dataset>> maker_;
};

}  // namespace ddprun
