#include "worker_runtime/state/checkpoints.hpp"

#include <chrono>
#include <cstdio>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "worker_runtime/checkpoint/checkpoint_folder.hpp"

namespace ddprun {

namespace {

struct DtypeName {
    torch::ScalarType type;
    const char* name;
};

/// The types that both LibTorch and the safetensors format know.
constexpr DtypeName kDtypeNames[] = {
    {torch::kFloat64, "F64"},        {torch::kFloat32, "F32"},
    {torch::kFloat16, "F16"},        {torch::kBFloat16, "BF16"},
    {torch::kInt64, "I64"},          {torch::kInt32, "I32"},
    {torch::kInt16, "I16"},          {torch::kInt8, "I8"},
    {torch::kUInt64, "U64"},         {torch::kUInt32, "U32"},
    {torch::kUInt16, "U16"},         {torch::kUInt8, "U8"},
    {torch::kBool, "BOOL"},          {torch::kComplexFloat, "C64"},
    {at::kFloat8_e4m3fn, "F8_E4M3"}, {at::kFloat8_e4m3fnuz, "F8_E4M3FNUZ"},
    {at::kFloat8_e5m2, "F8_E5M2"},   {at::kFloat8_e5m2fnuz, "F8_E5M2FNUZ"},
};

Result<std::vector<worker::TensorView>> views_of(
    const std::map<std::string, torch::Tensor>& tensors) {
    std::vector<worker::TensorView> views;
    for (const auto& [name, tensor] : tensors) {
        const char* dtype = nullptr;
        for (const DtypeName& known : kDtypeNames) {
            if (known.type == tensor.scalar_type()) {
                dtype = known.name;
            }
        }
        if (dtype == nullptr) {
            return Error{ErrorCode::InvalidArgument,
                         fmt::format("tensor {} is of type {}, which safetensors does not have",
                                     name, c10::str(tensor.scalar_type()))};
        }
        views.push_back(
            {.name = name,
             .dtype = dtype,
             .shape = {tensor.sizes().begin(), tensor.sizes().end()},
             .bytes = {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()}});
    }
    return views;
}

/// Shows what `loaded` holds: nothing is copied.
Result<TrainingState::Snapshot> snapshot_of(const worker::LoadedCheckpoint& loaded) {
    TrainingState::Snapshot snapshot;
    snapshot.values = loaded.info.values;
    for (const auto& [name, view] : loaded.tensors) {
        const DtypeName* dtype = nullptr;
        for (const DtypeName& known : kDtypeNames) {
            if (view.dtype == known.name) {
                dtype = &known;
            }
        }
        if (dtype == nullptr) {
            return Error{
                ErrorCode::BadMessage,
                fmt::format("tensor {} is of type {}, which is unknown", name, view.dtype)};
        }
        snapshot.tensors[name] =
            view.bytes.empty() ? torch::empty(view.shape, dtype->type)
                               : torch::from_blob(const_cast<std::byte*>(view.bytes.data()),
                                                  view.shape, torch::TensorOptions(dtype->type));
    }
    return snapshot;
}

void say_on_stderr(const std::string& line) {
    fmt::print(stderr, "worker: {}\n", line);
    (void)std::fflush(stderr);
}

/// The lowest rank whose `is_right` is false, the same answer everywhere; none if all are.
Result<std::optional<int>> first_rank_against(ProcessGroup& group, bool is_right) {
    const Result<torch::Tensor> votes =
        group.all_gather(torch::full({1}, is_right ? 1 : 0, torch::kInt32));
    if (!votes) {
        return votes.error();
    }
    const torch::Tensor against = (votes->flatten() == 0).nonzero();
    return against.numel() > 0 ? std::optional(against[0].item<int>()) : std::optional<int>();
}

/// Rank 0's list for everyone. `is_writer`: the folder is put in order, and must be usable.
Result<std::vector<std::int64_t>> agree_on_candidates(ProcessGroup& group, const std::string& dir,
                                                      bool is_writer) {
    Result<std::vector<std::int64_t>> steps;
    if (group.rank() == 0) {
        Result<void> usable;
        if (is_writer) {
            worker::remove_leftovers(dir);
            usable = worker::check_checkpoint_folder(dir);
        }
        steps = usable ? worker::list_checkpoints(dir) : usable.error();
    }
    torch::Tensor length =
        torch::full({1}, steps ? static_cast<std::int64_t>(steps->size()) : -1, torch::kInt64);
    if (const Result<void> sent = group.broadcast(length); !sent) {
        return sent.error();
    }
    const auto count = length.item<std::int64_t>();
    if (count < 0) {
        return steps ? Error{ErrorCode::System, fmt::format("rank 0 cannot use {}", dir)}
                     : steps.error();
    }
    steps->resize(static_cast<std::size_t>(count));
    if (count > 0) {
        torch::Tensor list = torch::from_blob(steps->data(), {count}, torch::kInt64);
        if (const Result<void> sent = group.broadcast(list); !sent) {
            return sent.error();
        }
    }
    return steps;
}

}  // namespace

Checkpoints::Checkpoints(std::string dir, const Worker& worker, ProcessGroup group,
                         CheckpointsOptions options)
    : dir_(std::move(dir)),
      worker_(worker),
      group_(std::move(group)),
      options_(std::move(options)) {
    if (!options_.say) {
        options_.say = say_on_stderr;
    }
}

Result<std::optional<std::int64_t>> Checkpoints::resume(TrainingState& state) {
    worker_.checkpoints_in(dir_);
    Result<std::optional<std::int64_t>> step = load(state, TrainingState::Scope::Everything);
    if (step && step->has_value()) {
        worker_.resumed();
    }
    return step;
}

Result<std::int64_t> Checkpoints::load_weights(TrainingState& state) {
    const Result<std::optional<std::int64_t>> step = load(state, TrainingState::Scope::Models);
    if (!step) {
        return step.error();
    }
    if (!step->has_value()) {
        return Error{ErrorCode::NotFound,
                     fmt::format("no weights are loaded: there is no checkpoint in {}; name the "
                                 "folder of the training that wrote them",
                                 dir_)};
    }
    return **step;
}

Result<std::optional<std::int64_t>> Checkpoints::load(TrainingState& state,
                                                      TrainingState::Scope scope) {
    const Result<std::vector<std::int64_t>> candidates =
        agree_on_candidates(group_, dir_, scope == TrainingState::Scope::Everything);
    if (!candidates) {
        return candidates.error();
    }
    for (const std::int64_t step : *candidates) {
        const Result<worker::LoadedCheckpoint> loaded = worker::read_checkpoint(dir_, step);
        const Result<std::optional<int>> against = first_rank_against(group_, loaded.has_value());
        if (!against) {
            return against.error();
        }
        if (against->has_value()) {
            // One line for all: that of the first rank that has found something.
            if (**against == group_.rank()) {
                options_.say(fmt::format("rank {} passes over the checkpoint of step {}: {}",
                                         group_.rank(), step, loaded.error().what));
            }
            continue;
        }
        const Result<TrainingState::Snapshot> snapshot = snapshot_of(*loaded);
        const Result<TrainingState::PutBack> put_back =
            snapshot ? state.compare(*snapshot, group_, scope) : snapshot.error();
        // Every rank finds that it fits before any rank changes anything.
        if (const Result<void> fits = agreed(step, "does not fit this program", put_back); !fits) {
            return fits.error();
        }
        if (const Result<void> done = agreed(step, "could not be put back", (*put_back)()); !done) {
            return done.error();
        }
        return std::optional(step);
    }
    if (!candidates->empty()) {
        return Error{ErrorCode::BadMessage,
                     fmt::format("none of the {} checkpoints in {} is valid; move them away to "
                                 "start from the beginning",
                                 candidates->size(), dir_)};
    }
    return std::optional<std::int64_t>();
}

template <typename T>
Result<void> Checkpoints::agreed(std::int64_t step, const char* what, const Result<T>& own) {
    const Result<std::optional<int>> against = first_rank_against(group_, own.has_value());
    if (!against) {
        return against.error();
    }
    if (!against->has_value()) {
        return {};
    }
    const std::string why = own ? fmt::format("rank {} says why", **against) : own.error().what;
    return Error{ErrorCode::InvalidArgument,
                 fmt::format("the checkpoint of step {} in {} {}: {}; use another folder, or the "
                             "program that wrote it",
                             step, dir_, what, why)};
}

Result<void> Checkpoints::save(std::int64_t step, const TrainingState& state) {
    if (group_.stop_ballot().holds_gradients()) {
        return Error{ErrorCode::InvalidArgument,
                     fmt::format("step {} is not saved: gradients of no_sync() passes would be "
                                 "lost; save after the pass that averages them, or after "
                                 "zero_grad()",
                                 step)};
    }
    worker_.checkpoints_in(dir_);
    const Instant begin = std::chrono::steady_clock::now();
    Result<void> written = write(step, state);
    worker_.checkpointing(std::chrono::steady_clock::now() - begin);
    return written;
}

/// The state goes to rank 0, which writes it.
Result<void> Checkpoints::write(std::int64_t step, const TrainingState& state) {
    const Result<TrainingState::Snapshot> snapshot = state.take(group_);
    if (!snapshot) {
        return snapshot.error();
    }
    if (group_.rank() != 0) {
        return {};
    }
    const Result<std::vector<worker::TensorView>> views = views_of(snapshot->tensors);
    if (!views) {
        return views.error();
    }
    const worker::CheckpointInfo info{
        .step = step,
        .generation = worker_.environment().generation,
        .world_size = group_.world_size(),
        .values = snapshot->values,
    };
    worker::PublishOptions publish;
    publish.keep = options_.keep;
    publish.is_isolated = [this] { return worker_.is_isolated(); };
    publish.on_warning = options_.say;
    const Result<std::string> published = worker::publish_checkpoint(dir_, info, *views, publish);
    return published ? Result<void>() : Result<void>(published.error());
}

}  // namespace ddprun
