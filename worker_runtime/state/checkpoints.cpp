#include "worker_runtime/state/checkpoints.hpp"

#include <chrono>
#include <cstdio>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "worker_runtime/checkpoint/checkpoint_folder.hpp"
#include "worker_runtime/checkpoint/publishing.hpp"
#include "worker_runtime/comm/votes.hpp"
#include "worker_runtime/state/background_save.hpp"
#include "worker_runtime/state/saving.hpp"
#include "worker_runtime/state/stored_state.hpp"

namespace ddprun {

namespace {

void say_on_stderr(const std::string& line) {
    fmt::print(stderr, "worker: {}\n", line);
    (void)std::fflush(stderr);
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

Checkpoints::~Checkpoints() = default;

Result<std::optional<std::int64_t>> Checkpoints::resume(TrainingState& state,
                                                        const ResumeOptions& options) {
    worker_.checkpoints_in(dir_);
    Result<std::optional<std::int64_t>> step =
        load(state, {.is_strict = options.is_strict, .rename = options.rename});
    if (step && step->has_value()) {
        worker_.resumed();
    }
    return step;
}

Result<std::int64_t> Checkpoints::load_weights(TrainingState& state) {
    const Result<std::optional<std::int64_t>> step =
        load(state, {.scope = TrainingState::Scope::Models});
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
                                                      const TrainingState::Comparison& how) {
    (void)wait();  // A save under way reads the state, and has a folder that looks like a leftover.
    const Result<std::vector<std::int64_t>> candidates =
        agree_on_candidates(group_, dir_, how.scope == TrainingState::Scope::Everything);
    if (!candidates) {
        return candidates.error();
    }
    for (const std::int64_t step : *candidates) {
        Result<worker::LoadedCheckpoint> loaded = worker::read_checkpoint(dir_, step, read_share());
        const Result<std::optional<int>> against =
            worker::first_rank_against(group_, loaded.has_value());
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
        const Result<worker::StoredState> stored = worker::StoredState::of(*std::move(loaded));
        const Result<TrainingState::Fit> fit = worker::caught<TrainingState::Fit>([&] {
            return stored ? state.compare(*stored, group_, how)
                          : Result<TrainingState::Fit>(stored.error());
        });
        // Every rank finds that it fits before any rank changes anything.
        if (const Result<void> fits = agreed(step, "does not fit this program", fit); !fits) {
            return fits.error();
        }
        for (const std::string& line :
             group_.rank() == 0 ? fit->lines : std::vector<std::string>()) {
            options_.say(fmt::format("resuming at step {}: {}", step, line));
        }
        if (const Result<void> done = agreed(step, "could not be put back", fit->put_back());
            !done) {
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
    const Result<std::optional<int>> against = worker::first_rank_against(group_, own.has_value());
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
    if (const std::optional<Instant> deadline = worker_.stop_deadline()) {
        say_time_left(step, *deadline);
    }
    return timed([&] {
        tell_asked();
        (void)wait();
        tell_begun(step);
        const Instant begin = std::chrono::steady_clock::now();
        std::uint64_t bytes = 0;
        Result<void> written = write(step, state, bytes);
        last_save_ = std::chrono::steady_clock::now() - begin;
        tell_ended(written, bytes);
        return written;
    });
}

void Checkpoints::say_time_left(std::int64_t step, Instant deadline) const {
    using Seconds = std::chrono::duration<double>;
    if (worker_.local_rank() != 0) {
        return;
    }
    const Seconds left = deadline - std::chrono::steady_clock::now();
    const std::string last =
        last_save_ ? fmt::format("the last save took {:.1f} s", Seconds(*last_save_).count())
                   : std::string("this is the first save");
    options_.say(
        fmt::format("step {} is saved before this node's workers are killed in {:.1f} s; {}", step,
                    left.count(), last));
}

Result<void> Checkpoints::save_async(std::int64_t step, const TrainingState& state) {
    return timed([&] { return begin_async(step, state); });
}

template <typename Act>
Result<void> Checkpoints::timed(const Act& act) {
    worker_.checkpoints_in(dir_);
    const Instant begin = std::chrono::steady_clock::now();
    Result<void> done = act();
    const Duration stalled = std::chrono::steady_clock::now() - begin;
    worker_.checkpointing(stalled);
    worker_.save_stalled(stalled);
    return done;
}

void Checkpoints::tell_asked() const {
    if (group_.rank() == 0) {
        worker_.save_asked(background_ && background_->is_under_way());
    }
}

void Checkpoints::tell_begun(std::int64_t step) const {
    if (group_.rank() == 0) {
        worker_.save_begun(step);
    }
}

void Checkpoints::tell_ended(const Result<void>& done, std::uint64_t bytes) const {
    if (group_.rank() == 0) {
        worker_.save_ended({.is_complete = done.has_value(), .bytes = bytes});
    }
}

void Checkpoints::before_step() const {
    group_.background_saves().before_step();
}

Result<void> Checkpoints::wait() {
    return background_ ? background_->wait() : Result<void>();
}

worker::PublishOptions Checkpoints::publish_options() const {
    worker::PublishOptions publish;
    publish.keep = options_.keep;
    publish.keep_every = options_.keep_every;
    publish.is_isolated = [this] { return worker_.is_isolated(); };
    publish.on_warning = options_.say;
    return publish;
}

worker::ReadShare Checkpoints::read_share() const {
    // The workers of a node have the same pages: what one has verified the others read.
    const bool has_all_workers = group_.world_size() == worker_.world_size();
    return has_all_workers
               ? worker::ReadShare{.reader = static_cast<std::size_t>(worker_.local_rank()),
                                   .readers = static_cast<std::size_t>(worker_.local_world_size())}
               : worker::ReadShare();
}

Result<worker::CheckpointShare> Checkpoints::share_of(std::int64_t step,
                                                      const TrainingState& state) {
    Result<void> ready;
    if (group_.stop_ballot().holds_gradients()) {
        ready = Error{ErrorCode::InvalidArgument,
                      "gradients of no_sync() passes would be lost; save after the pass that "
                      "averages them, or after zero_grad()"};
    }
    if (const Result<void> agreed = worker::agree_on(group_, ready); !agreed) {
        return Error{agreed.error().code,
                     fmt::format("step {} is not saved: {}", step, agreed.error().what)};
    }
    Result<worker::CollectedState> collected = state.collect(group_);
    const Result<void> whole = collected ? Result<void>() : Result<void>(collected.error());
    if (const Result<void> agreed = worker::agree_on(group_, whole); !agreed) {
        return Error{agreed.error().code,
                     fmt::format("step {} is not saved: {}", step, agreed.error().what)};
    }
    const Result<bool> alike = worker::are_alike(group_, worker::outline_of(*collected));
    if (!alike) {
        return alike.error();
    }
    const bool is_shared_out = *alike && !group_.background_saves().have_ranks_joined;
    return worker::share_of(*std::move(collected),
                            {.step = step,
                             .generation = worker_.environment().generation,
                             .world_size = group_.world_size()},
                            group_.rank(), is_shared_out ? group_.world_size() : 1);
}

Result<void> Checkpoints::write(std::int64_t step, const TrainingState& state,
                                std::uint64_t& bytes) {
    Result<worker::CheckpointShare> share = share_of(step, state);
    if (!share) {
        return share.error();
    }
    bytes = share->all_bytes;
    const Result<void> copied = worker::caught<void>([&]() -> Result<void> {
        for (worker::CheckpointShare::File& file : share->files) {
            for (auto& [name, one] : file.tensors) {
                one.tensor =
                    one.tensor.detach().to(torch::kCPU).resolve_conj().resolve_neg().contiguous();
            }
        }
        return {};
    });
    // A GPU's results since a rank was lost may be anything.
    if (const Result<void> whole = group_.check("saving the state"); !whole) {
        return whole.error();
    }
    if (const Result<void> agreed = worker::agree_on(group_, copied); !agreed) {
        return worker::not_written(dir_, step, agreed.error());
    }
    return worker::write_together(group_, dir_, *share, publish_options());
}

Result<void> Checkpoints::begin_async(std::int64_t step, const TrainingState& state) {
    if (!background_) {
        background_ = std::make_unique<worker::BackgroundSave>(group_, options_.say);
    }
    tell_asked();
    if (options_.while_saving == CheckpointsOptions::WhileSaving::Refuse) {
        const Result<std::optional<int>> busy =
            worker::first_rank_against(group_, !background_->is_under_way());
        if (!busy) {
            return busy.error();
        }
        if (busy->has_value()) {
            return Error{ErrorCode::Refused,
                         fmt::format("step {} is not saved: the save before it is still under way "
                                     "on rank {}; save less often, or let save_async() wait",
                                     step, **busy)};
        }
    }
    (void)wait();
    tell_begun(step);
    Result<worker::CheckpointShare> share = share_of(step, state);
    Result<void> begun = share ? Result<void>() : Result<void>(share.error());
    if (begun) {
        const std::uint64_t bytes = share->all_bytes;
        begun = background_->begin(
            dir_, *std::move(share), worker_.local_world_size(), publish_options(),
            [this, bytes](const Result<void>& done) { tell_ended(done, bytes); });
    }
    if (!begun) {
        tell_ended(begun, 0);
    }
    return begun;
}

}  // namespace ddprun
