#include "worker_runtime/state/checkpoints.hpp"

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/os/machine_identity.hpp"
#include "base/runtime_limits.hpp"
#include "worker_runtime/checkpoint/checkpoint_folder.hpp"
#include "worker_runtime/checkpoint/old_checkpoints.hpp"
#include "worker_runtime/checkpoint/publishing.hpp"
#include "worker_runtime/comm/votes.hpp"
#include "worker_runtime/state/background_save.hpp"
#include "worker_runtime/state/memory_tier.hpp"
#include "worker_runtime/state/saving.hpp"
#include "worker_runtime/state/stored_state.hpp"

namespace ddprun {

namespace {

void say_on_stderr(const std::string& line) {
    fmt::print(stderr, "worker: {}\n", line);
    (void)std::fflush(stderr);
}

/// The checkpoints in the folder.
struct OnDisk {
    std::vector<std::int64_t> steps;  ///< the newest first
    worker::SavedStep newest;
};

/// Rank 0's list for everyone.
Result<OnDisk> agree_on_candidates(ProcessGroup& group, const std::string& dir) {
    Result<std::string> own = std::string();
    if (group.rank() == 0) {
        const Result<std::vector<std::int64_t>> steps = worker::list_checkpoints(dir);
        if (steps) {
            const std::uint64_t save =
                steps->empty() ? 0 : worker::save_of_checkpoint(dir, steps->front());
            own = nlohmann::json({*steps, save}).dump();
        } else {
            own = steps.error();
        }
    }
    const Result<std::string> all = worker::from_rank_0(group, own);
    if (!all) {
        return all.error();
    }
    const nlohmann::json json = nlohmann::json::parse(*all);
    OnDisk found{.steps = json.at(0).get<std::vector<std::int64_t>>(), .newest = {}};
    if (!found.steps.empty()) {
        found.newest = {.step = found.steps.front(), .save = json.at(1).get<std::uint64_t>()};
    }
    return found;
}

/// Puts the folder in order. Fails on every rank unless all ranks with `is_probing` can write a
/// file where rank 0 sees it.
Result<void> prepare_folder(ProcessGroup& group, const std::string& dir, bool is_probing) {
    const auto failed = [&](const Error& why) {
        return Error{why.code, fmt::format("node {}: {}", host_name(), why.what)};
    };
    Result<std::string> begun = std::string();
    if (group.rank() == 0) {
        worker::remove_leftovers(dir);
        const Result<worker::PartialCheckpoint> probe = worker::begin_probe(dir);
        begun = probe ? Result<std::string>(probe->name) : failed(probe.error());
    }
    const Result<std::string> name = worker::from_rank_0(group, begun);
    if (!name) {
        return name.error();
    }
    const worker::PartialCheckpoint place{.dir = dir, .name = *name};
    const Result<void> own =
        is_probing ? worker::probe(place, fmt::format("rank-{}", group.rank())) : Result<void>();
    const Result<void> all = worker::agree_on(group, own ? own : Result<void>(failed(own.error())));
    if (group.rank() == 0) {
        worker::abandon(place);
    }
    return all;
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
    old_ = std::make_unique<worker::OldCheckpoints>(options_.say);
}

Checkpoints::~Checkpoints() = default;

Result<std::optional<std::int64_t>> Checkpoints::resume(TrainingState& state,
                                                        const ResumeOptions& options) {
    worker_.checkpoints_in(dir_);
    const Result<std::optional<worker::SavedStep>> from =
        load(state, {.is_strict = options.is_strict, .rename = options.rename});
    if (!from) {
        return from.error();
    }
    if (from->has_value()) {
        numbers_.resumed(**from);
        worker_.resumed();
    }
    if (options_.prepares_save_async && !background_) {
        prepare_save_async(state);
    }
    return from->has_value() ? std::optional((*from)->step) : std::nullopt;
}

void Checkpoints::prepare_save_async(const TrainingState& state) {
    background_ = std::make_unique<worker::BackgroundSave>(group_, options_.say);
    worker::CheckpointShare share;
    const Result<void> fits = worker::caught<void>([&]() -> Result<void> {
        const Result<worker::CollectedState> expected = state.expected(group_);
        if (!expected) {
            return expected.error();
        }
        share = worker::share_of(*expected, {.world_size = group_.world_size()}, group_.rank(),
                                 writers());
        return background_->check_room(share, worker_.local_world_size());
    });
    constexpr const char* kNotReady = "no memory is made ready for save_async()";
    if (const Result<void> fit = worker::agree_on(group_, fits); !fit) {
        if (group_.rank() == 0) {
            options_.say(fmt::format("{}: {}", kNotReady, fit.error().what));
        }
    } else if (const Result<void> prepared = background_->prepare(share); !prepared) {
        options_.say(
            fmt::format("rank {}: {}: {}", group_.rank(), kNotReady, prepared.error().what));
    }
}

int Checkpoints::writers() const {
    return are_alike_ && !group_.background_saves().have_ranks_joined ? group_.world_size() : 1;
}

Result<std::int64_t> Checkpoints::load_weights(TrainingState& state) {
    const Result<std::optional<worker::SavedStep>> from =
        load(state, {.scope = TrainingState::Scope::Models});
    if (!from) {
        return from.error();
    }
    if (!from->has_value()) {
        return Error{ErrorCode::NotFound,
                     fmt::format("no weights are loaded: there is no checkpoint in {}; name the "
                                 "folder of the training that wrote them",
                                 dir_)};
    }
    return (*from)->step;
}

Result<std::optional<worker::SavedStep>> Checkpoints::load(TrainingState& state,
                                                           const TrainingState::Comparison& how) {
    (void)wait();  // A save under way reads the state, and has a folder that looks like a leftover.
    old_->wait();  // Folders that it still removes look like leftovers.
    // Ranks wait in collectives for the one that reads longest.
    const ProcessGroup::LongerWait longer(group_, worker::RuntimeLimits{}.save_wait);
    if (how.scope == TrainingState::Scope::Everything) {
        // One rank of each node, if these are all ranks.
        const bool is_probing = worker_.local_rank() == 0 || !has_all_workers();
        if (const Result<void> ready = prepare_folder(group_, dir_, is_probing); !ready) {
            return ready.error();
        }
    }
    const Result<OnDisk> on_disk = agree_on_candidates(group_, dir_);
    if (!on_disk) {
        return on_disk.error();
    }
    const worker::SavedStep& newest = on_disk->newest;
    if (how.scope == TrainingState::Scope::Everything) {
        const auto found = load_from_memory(state, how, newest);
        if (!found || found->has_value()) {
            return found;
        }
    }
    for (const std::int64_t step : on_disk->steps) {
        auto found = load_from_disk(state, how, step);
        // Memory may have an earlier save of this step.
        if (found && !found->has_value() && step == newest.step && newest.save > 0 &&
            how.scope == TrainingState::Scope::Everything) {
            found = load_from_memory(state, how, {.step = step});
        }
        if (!found || found->has_value()) {
            return found;
        }
    }
    if (!on_disk->steps.empty()) {
        return Error{ErrorCode::BadMessage,
                     fmt::format("none of the {} checkpoints in {} is valid; move them away to "
                                 "start from the beginning",
                                 on_disk->steps.size(), dir_)};
    }
    return std::optional<worker::SavedStep>();
}

Result<std::optional<worker::SavedStep>> Checkpoints::load_from_disk(
    TrainingState& state, const TrainingState::Comparison& how, std::int64_t step) {
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
        return std::optional<worker::SavedStep>();
    }
    const worker::SavedStep found{.step = step, .save = loaded->info.save};
    if (const Result<void> done = put_back(state, how, *std::move(loaded)); !done) {
        return done.error();
    }
    return std::optional(found);
}

Result<std::optional<worker::SavedStep>> Checkpoints::load_from_memory(
    TrainingState& state, const TrainingState::Comparison& how, const worker::SavedStep& at_least) {
    const Result<worker::MemoryTier*> tier = memory();
    if (!tier) {
        return tier.error();
    }
    if (*tier == nullptr) {
        return std::optional<worker::SavedStep>();
    }
    Result<std::optional<worker::LoadedCheckpoint>> loaded = (*tier)->load(group_, at_least);
    if (!loaded) {
        return loaded.error();
    }
    if (!loaded->has_value()) {
        return std::optional<worker::SavedStep>();
    }
    const worker::SavedStep found{.step = (*loaded)->info.step, .save = (*loaded)->info.save};
    if (const Result<void> done = put_back(state, how, **std::move(loaded)); !done) {
        return done.error();
    }
    return std::optional(found);
}

Result<void> Checkpoints::put_back(TrainingState& state, const TrainingState::Comparison& how,
                                   worker::LoadedCheckpoint loaded) {
    const std::int64_t step = loaded.info.step;
    const Result<worker::StoredState> stored = worker::StoredState::of(std::move(loaded));
    const Result<TrainingState::Fit> fit = worker::caught<TrainingState::Fit>([&] {
        return stored ? state.compare(*stored, group_, how)
                      : Result<TrainingState::Fit>(stored.error());
    });
    // Every rank finds that it fits before any rank changes anything.
    const Result<void> own = fit ? Result<void>() : Result<void>(fit.error());
    if (const Result<void> fits = agreed(step, "does not fit this program", own); !fits) {
        return fits.error();
    }
    for (const std::string& line : group_.rank() == 0 ? fit->lines : std::vector<std::string>()) {
        options_.say(fmt::format("resuming at step {}: {}", step, line));
    }
    return agreed(step, "could not be put back", fit->put_back());
}

Result<worker::MemoryTier*> Checkpoints::memory() {
    // A group of some of the workers has checkpoints of its own, on the disk.
    if (!has_looked_for_memory_ && has_all_workers()) {
        std::error_code failure;
        const std::string series = std::filesystem::absolute(dir_, failure).lexically_normal();
        Result<std::unique_ptr<worker::MemoryTier>> connected =
            worker::MemoryTier::connect(group_, worker_.environment(), series, options_.say);
        if (!connected) {
            return connected.error();
        }
        memory_ = *std::move(connected);
    }
    has_looked_for_memory_ = true;
    return memory_.get();
}

Result<void> Checkpoints::agreed(std::int64_t step, const char* what, const Result<void>& own) {
    const Result<void> all = worker::agree_on(group_, own);
    if (all || all.error().code == ErrorCode::ConnectionLost) {
        return all;
    }
    return Error{ErrorCode::InvalidArgument,
                 fmt::format("the checkpoint of step {} in {} {}: {}; use another folder, or the "
                             "program that wrote it",
                             step, dir_, what, all.error().what)};
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
        tell_ended(written, bytes, kSavePlaceDisk);
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

void Checkpoints::tell_ended(const Result<void>& done, std::uint64_t bytes,
                             std::uint64_t places) const {
    if (group_.rank() == 0) {
        worker_.save_ended({.is_complete = done.has_value(),
                            .bytes = bytes,
                            .places = places,
                            .why = done ? std::string() : done.error().what});
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
    publish.old = old_.get();
    return publish;
}

bool Checkpoints::has_all_workers() const {
    return group_.world_size() == worker_.world_size();
}

worker::ReadShare Checkpoints::read_share() const {
    // The workers of a node have the same pages: what one has verified the others read. The local
    // rank may be virtual, and then is 0 for all.
    return has_all_workers()
               ? worker::ReadShare{.reader =
                                       static_cast<std::size_t>(worker_.environment().slot.value()),
                                   .readers = static_cast<std::size_t>(worker_.local_world_size())}
               : worker::ReadShare();
}

struct Checkpoints::Agreed {
    worker::CheckpointShare share;
    std::optional<int> busy;     ///< the first rank that is; then there is no save
    bool are_connected = false;  ///< all ranks, for a save beside the training
};

Result<Checkpoints::Agreed> Checkpoints::agree_on_save(std::int64_t step,
                                                       const TrainingState& state,
                                                       worker::BackgroundSave* beside,
                                                       bool is_busy) {
    // A rank with an error collects, too: a section's `save` may use collectives.
    const Result<worker::CollectedState> collected =
        worker::caught<worker::CollectedState>([&] { return state.collect(group_); });
    Result<void> own = collected ? Result<void>() : Result<void>(collected.error());
    if (group_.stop_ballot().holds_gradients()) {
        own = Error{ErrorCode::InvalidArgument,
                    "gradients of no_sync() passes would be lost; save after the pass that "
                    "averages them, or after zero_grad()"};
    }
    const std::string outline = collected ? worker::outline_of(*collected) : std::string();
    const std::uint64_t number = numbers_.next(step);
    for (;;) {
        // Which tensors this rank writes, and so its memory, depends on the ranks being alike.
        const int among = writers();
        Agreed agreed;
        if (own) {
            agreed.share = worker::share_of(*collected,
                                            {.step = step,
                                             .save = number,
                                             .generation = worker_.environment().generation,
                                             .world_size = group_.world_size()},
                                            group_.rank(), among);
            if (beside != nullptr && !is_busy) {
                own = beside->check_room(agreed.share, worker_.local_world_size());
            }
        }
        const bool is_connected = beside != nullptr && beside->is_connected();
        const Result<torch::Tensor> all = worker::agree_with_numbers(
            group_, own,
            {is_busy ? 0 : 1, is_connected ? 1 : 0,
             static_cast<std::int64_t>(std::hash<std::string>()(outline)),
             static_cast<std::int64_t>(outline.size())});
        if (!all) {
            return Error{all.error().code,
                         fmt::format("step {} is not saved: {}", step, all.error().what)};
        }
        agreed.busy = worker::first_zero_of(all->select(1, 0));
        agreed.are_connected = !worker::first_zero_of(all->select(1, 1));
        const torch::Tensor outlines = all->narrow(1, 2, 2);
        are_alike_ = (outlines == outlines[0]).all().item<bool>();
        if (agreed.busy || are_alike_ || among == 1) {
            return agreed;
        }
    }
}

Result<void> Checkpoints::write(std::int64_t step, const TrainingState& state,
                                std::uint64_t& bytes) {
    Result<Agreed> agreed = agree_on_save(step, state, /*beside=*/nullptr, /*is_busy=*/false);
    if (!agreed) {
        return agreed.error();
    }
    worker::CheckpointShare& share = agreed->share;
    bytes = share.all_bytes;
    const auto to_cpu = [](torch::Tensor& tensor, bool is_copied) {
        tensor = tensor.detach()
                     .to(torch::kCPU, /*non_blocking=*/false, is_copied)
                     .resolve_conj()
                     .resolve_neg()
                     .contiguous();
    };
    const Result<void> copied = worker::caught<void>([&]() -> Result<void> {
        for (worker::CheckpointShare::File& file : share.files) {
            for (auto& [name, one] : file.tensors) {
                to_cpu(one.tensor, /*is_copied=*/false);
            }
        }
        for (auto& [name, one] : share.sums) {
            to_cpu(one.tensor, /*is_copied=*/true);
        }
        return {};
    });
    // A GPU's results since a rank was lost may be anything.
    if (const Result<void> whole = group_.check("saving the state"); !whole) {
        return whole.error();
    }
    Result<void> ready = worker::agree_on(group_, copied);
    if (ready) {
        ready = worker::combine(group_, share);
    }
    return ready ? worker::write_together(group_, dir_, share, publish_options())
                 : worker::not_written(dir_, step, ready.error());
}

Result<void> Checkpoints::begin_async(std::int64_t step, const TrainingState& state) {
    const Result<worker::MemoryTier*> tier = memory();
    if (!tier) {
        return tier.error();
    }
    const bool has_disk = options_.disk_every <= 1 || step % options_.disk_every == 0;
    if (!has_disk && *tier == nullptr) {
        return {};
    }
    if (!background_) {
        background_ = std::make_unique<worker::BackgroundSave>(group_, options_.say);
    }
    tell_asked();
    const bool is_busy = options_.while_saving == CheckpointsOptions::WhileSaving::Refuse &&
                         background_->is_under_way();
    if (!is_busy) {
        (void)wait();
    }
    Result<Agreed> agreed = agree_on_save(step, state, background_.get(), is_busy);
    if (agreed && agreed->busy) {
        return Error{ErrorCode::Refused,
                     fmt::format("step {} is not saved: the save before it is still under way on "
                                 "rank {}; save less often, or let save_async() wait",
                                 step, *agreed->busy)};
    }
    tell_begun(step);
    Result<void> begun = agreed ? Result<void>() : Result<void>(agreed.error());
    if (begun) {
        const std::uint64_t bytes = agreed->share.all_bytes;
        begun =
            background_->begin({.dir = dir_, .has_disk = has_disk, .memory = *tier},
                               std::move(agreed->share), agreed->are_connected, publish_options(),
                               [this, bytes](const Result<void>& done, std::uint64_t places) {
                                   tell_ended(done, bytes, places);
                               });
    }
    if (!begun) {
        tell_ended(begun, 0, 0);
    }
    return begun;
}

}  // namespace ddprun
