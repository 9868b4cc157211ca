#include "worker_runtime/state/saving.hpp"

#include <iterator>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/runtime_limits.hpp"
#include "worker_runtime/checkpoint/old_checkpoints.hpp"
#include "worker_runtime/comm/votes.hpp"
#include "worker_runtime/state/dtype_names.hpp"
#include "worker_runtime/state/written_files.hpp"

namespace ddprun::worker {

namespace {

constexpr const char* kModelKind = "model";
constexpr const char* kTrainingKind = "training";

std::uint64_t whole_bytes(const StateTensor& state) {
    std::uint64_t elements = 1;
    if (!state.layout) {
        return state.tensor.nbytes();
    }
    for (const std::int64_t length : state.layout->global_shape) {
        elements *= static_cast<std::uint64_t>(length);
    }
    return elements * state.tensor.element_size();
}

/// The ranks that write a file of one kind, and what this one writes.
struct Kind {
    std::set<int> writers;
    StateTensors own;
    std::map<std::string, int> whole_on;  ///< by name, the rank that writes a whole tensor

    /// `owner`: of a whole tensor.
    void add(const std::string& name, const StateTensor& state, int owner, int rank,
             int world_size) {
        if (state.layout) {
            for (int one = 0; one < world_size; ++one) {
                writers.insert(one);
            }
        } else {
            writers.insert(owner);
            whole_on[name] = owner;
        }
        if (state.layout || owner == rank) {
            own[name] = state;
        }
    }

    [[nodiscard]] std::string file_of(const char* kind, int rank) const {
        const auto before = std::distance(writers.begin(), writers.find(rank));
        return tensor_file_name(kind, static_cast<int>(before) + 1,
                                static_cast<int>(writers.size()));
    }
};

/// The rank that writes each whole tensor. Tensors that a forward pass changes, as batch norm's
/// buffers, may differ among ranks: rank 0's count.
std::map<std::string, int> owners_of(const CollectedState& state, int writers) {
    std::vector<std::string> names;
    std::vector<std::uint64_t> sizes;
    for (const StateTensors* const tensors : {&state.models, &state.others}) {
        for (const auto& [name, one] : *tensors) {
            if (!one.layout && one.changes_in_steps_only) {
                names.push_back(name);
                sizes.push_back(one.tensor.nbytes());
            }
        }
    }
    const std::vector<int> ranks = share_out(sizes, writers);
    std::map<std::string, int> owners;
    for (std::size_t i = 0; i < names.size(); ++i) {
        owners[names[i]] = ranks[i];
    }
    return owners;
}

Result<std::vector<ManifestFile>> write_files(const PartialCheckpoint& partial,
                                              const CheckpointShare& share) {
    std::vector<ManifestFile> files;
    for (const CheckpointShare::File& file : share.files) {
        const Result<std::vector<TensorView>> views = views_of(file.tensors);
        if (!views) {
            return views.error();
        }
        const Result<ManifestFile> written = write_tensors(partial, file.name, file.prefix, *views);
        if (!written) {
            return written.error();
        }
        files.push_back(*written);
    }
    return files;
}

Error of_rank_0(const Error& why) {
    return {why.code, "rank 0: " + why.what};
}

/// Rank 0: `written` is what every rank has written. On failure nothing is left.
Result<std::string> finish(const PartialCheckpoint& partial, const CheckpointShare& share,
                           const std::vector<std::string>& written, const PublishOptions& options) {
    Result<std::vector<ManifestFile>> files = files_of_all(share, written);
    if (!files) {
        abandon(partial);
        return files.error();
    }
    if (!share.model_index.empty()) {
        const Result<ManifestFile> index =
            write_model_index(partial, share.model_index, share.model_bytes);
        if (!index) {
            abandon(partial);
            return of_rank_0(index.error());
        }
        files->push_back(*index);
    }
    const Result<std::string> published =
        publish(partial, {.info = share.info, .files = *std::move(files)}, options);
    return published ? published : of_rank_0(published.error());
}

}  // namespace

std::string outline_of(const CollectedState& state) {
    std::string outline;
    for (const StateTensors* const tensors :
         {&state.models, &state.others, &state.rows, &state.sums}) {
        for (const auto& [name, one] : *tensors) {
            // Sizes of parts are each rank's own.
            const std::string shape =
                one.layout ? fmt::format("{}", fmt::join(one.layout->global_shape, ","))
                           : c10::str(one.tensor.sizes());
            outline += fmt::format("{}\n{}\n{}\n", name, c10::str(one.tensor.scalar_type()), shape);
        }
    }
    return outline;
}

CheckpointShare share_of(const CollectedState& state, const CheckpointInfo& info, int rank,
                         int writers) {
    const int world_size = info.world_size;
    const std::map<std::string, int> owners = owners_of(state, writers);
    const auto owner_of = [&](const std::string& name) {
        const auto found = owners.find(name);
        return found == owners.end() ? 0 : found->second;
    };
    CheckpointShare share{.info = info, .rows = state.rows, .sums = state.sums};
    share.info.values = state.values;
    Kind models;
    Kind training;
    for (const auto& [name, one] : state.models) {
        models.add(name, one, owner_of(name), rank, world_size);
        share.model_bytes += whole_bytes(one);
    }
    share.all_bytes = share.model_bytes;
    training.writers.insert(0);  // for its own parts
    for (const StateTensors* const tensors : {&state.others, &state.of_rank_0}) {
        for (const auto& [name, one] : *tensors) {
            training.add(name, one, owner_of(name), rank, world_size);
            share.all_bytes += whole_bytes(one);
        }
    }
    for (const auto& [name, row] : state.rows) {
        share.all_bytes += whole_bytes(row) * static_cast<std::uint64_t>(world_size);
    }
    for (const auto& [name, sum] : state.sums) {
        share.all_bytes += whole_bytes(sum);
    }
    if (models.whole_on.size() == state.models.size()) {
        for (const auto& [name, owner] : models.whole_on) {
            share.model_index[name.substr(state.models_prefix.size())] =
                models.file_of(kModelKind, owner);
        }
    }
    if (models.writers.contains(rank)) {
        share.files.push_back({.name = models.file_of(kModelKind, rank),
                               .prefix = state.models_prefix,
                               .tensors = std::move(models.own)});
    }
    if (training.writers.contains(rank)) {
        share.files.push_back({.name = training.file_of(kTrainingKind, rank),
                               .prefix = {},
                               .tensors = std::move(training.own)});
    }
    return share;
}

Result<void> combine(ProcessGroup& group, CheckpointShare& share) {
    StateTensors combined;
    for (auto& [name, one] : share.sums) {
        if (const Result<void> summed = group.all_reduce(one.tensor); !summed) {
            return summed;
        }
        combined[name] = one;
    }
    for (const auto& [name, one] : share.rows) {
        const Result<torch::Tensor> all = group.all_gather(one.tensor);
        if (!all) {
            return all.error();
        }
        combined[name] = {.tensor = *all};
    }
    if (group.rank() == 0) {
        share.files.back().tensors.merge(combined);
    }
    return {};
}

Result<void> write_together(ProcessGroup& group, const std::string& dir,
                            const CheckpointShare& share, const PublishOptions& options) {
    const std::int64_t step = share.info.step;
    const auto failed = [&](const Error& why) { return not_written(dir, step, why); };
    const bool is_leader = group.rank() == 0;
    // Ranks wait in collectives for the one that writes longest.
    const ProcessGroup::LongerWait longer(group, RuntimeLimits{}.save_wait);
    Result<std::string> begun = std::string();
    if (is_leader) {
        if (options.old != nullptr) {
            options.old->wait();  // Their space is counted as free.
        }
        const Result<PartialCheckpoint> partial = begin_checkpoint(dir, step, share.all_bytes);
        begun = partial ? Result<std::string>(partial->name) : of_rank_0(partial.error());
    }
    const Result<std::string> name = from_rank_0(group, begun);
    if (!name) {
        if (is_leader && begun) {
            abandon({.dir = dir, .name = *begun, .step = step});
        }
        return failed(name.error());
    }
    const PartialCheckpoint partial{.dir = dir, .name = *name, .step = step};
    const Result<std::vector<std::string>> written =
        gather_results(group, described(share, write_files(partial, share)));
    Result<std::string> published = std::string();
    if (is_leader && written) {
        published = finish(partial, share, *written, options);
    } else if (is_leader) {
        abandon(partial);
    }
    const Result<std::string> outcome = written ? from_rank_0(group, published) : written.error();
    return outcome ? Result<void>() : Result<void>(failed(outcome.error()));
}

}  // namespace ddprun::worker
