#include "worker_runtime/state/saving.hpp"

#include <iterator>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/runtime_limits.hpp"
#include "worker_runtime/comm/votes.hpp"
#include "worker_runtime/state/dtype_names.hpp"

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

Error of_rank_0(const Error& why) {
    return {why.code, "rank 0: " + why.what};
}

/// The files and the parts of tensors in them, as JSON.
Result<std::string> write_files(const PartialCheckpoint& partial, const CheckpointShare& share) {
    nlohmann::json files = nlohmann::json::array();
    nlohmann::json parts = nlohmann::json::array();
    for (const CheckpointShare::File& file : share.files) {
        const Result<std::vector<TensorView>> views = views_of(file.tensors);
        if (!views) {
            return views.error();
        }
        const Result<ManifestFile> written = write_tensors(partial, file.name, file.prefix, *views);
        if (!written) {
            return written.error();
        }
        files.push_back({written->name, written->size, written->xxh3_128});
        for (const TensorView& view : *views) {
            if (view.layout) {
                parts.push_back({view.name, view.dtype, view.layout->global_shape,
                                 view.layout->offsets, view.shape});
            }
        }
    }
    return nlohmann::json{{"files", files}, {"parts", parts}}.dump();
}

using PartsByName = std::map<std::string, std::vector<RankPart>>;

/// Adds the files that rank `rank` has written, and its parts of tensors.
void add_written(const std::string& written, int rank, std::vector<ManifestFile>& files,
                 PartsByName& parts) {
    using Numbers = std::vector<std::int64_t>;
    const nlohmann::json json = nlohmann::json::parse(written);
    for (const nlohmann::json& file : json["files"]) {
        files.push_back({.name = file[0].get<std::string>(),
                         .size = file[1].get<std::uint64_t>(),
                         .xxh3_128 = file[2].get<std::string>()});
    }
    for (const nlohmann::json& part : json["parts"]) {
        parts[part[0].get<std::string>()].push_back(
            {.rank = rank,
             .dtype = part[1].get<std::string>(),
             .global_shape = part[2].get<Numbers>(),
             .box = {.offsets = part[3].get<Numbers>(), .lengths = part[4].get<Numbers>()}});
    }
}

/// Rank 0: adds its whole tensors under names that other ranks have for parts.
Result<void> add_whole_ones(const CheckpointShare& share, PartsByName& parts) {
    for (const CheckpointShare::File& file : share.files) {
        for (const auto& [name, state] : file.tensors) {
            const auto found = parts.find(name);
            if (state.layout || found == parts.end()) {
                continue;
            }
            const Result<std::vector<TensorView>> views = views_of({{name, state}});
            if (!views) {
                return views.error();
            }
            const TensorView& view = views->front();
            found->second.insert(
                found->second.begin(),
                {.dtype = view.dtype, .global_shape = view.shape, .box = whole_box(view.shape)});
        }
    }
    return {};
}

/// Rank 0: fails unless the parts of each tensor are the whole, as a reader wants them.
Result<void> check_all_parts(const CheckpointShare& share, PartsByName parts) {
    if (const Result<void> added = add_whole_ones(share, parts); !added) {
        return added;
    }
    for (const auto& [name, of_name] : parts) {
        if (const Result<void> whole = check_parts(name, of_name); !whole) {
            return whole;
        }
    }
    return {};
}

/// Rank 0: `written` is what every rank has written. On failure nothing is left.
Result<std::string> finish(const PartialCheckpoint& partial, const CheckpointShare& share,
                           const std::vector<std::string>& written, const PublishOptions& options) {
    std::vector<ManifestFile> files;
    PartsByName parts;
    for (std::size_t rank = 0; rank < written.size(); ++rank) {
        add_written(written[rank], static_cast<int>(rank), files, parts);
    }
    if (const Result<void> whole = check_all_parts(share, std::move(parts)); !whole) {
        abandon(partial);
        return whole.error();
    }
    if (!share.model_index.empty()) {
        const Result<ManifestFile> index =
            write_model_index(partial, share.model_index, share.model_bytes);
        if (!index) {
            abandon(partial);
            return of_rank_0(index.error());
        }
        files.push_back(*index);
    }
    const Result<std::string> published =
        publish(partial, {.info = share.info, .files = std::move(files)}, options);
    return published ? published : of_rank_0(published.error());
}

}  // namespace

std::string outline_of(const CollectedState& state) {
    std::string outline;
    for (const StateTensors* const tensors : {&state.models, &state.others}) {
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

CheckpointShare share_of(CollectedState state, const CheckpointInfo& info, int rank, int writers) {
    const int world_size = info.world_size;
    const std::map<std::string, int> owners = owners_of(state, writers);
    const auto owner_of = [&](const std::string& name) {
        const auto found = owners.find(name);
        return found == owners.end() ? 0 : found->second;
    };
    CheckpointShare share{.info = info};
    share.info.values = std::move(state.values);
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

Result<void> write_together(ProcessGroup& group, const std::string& dir,
                            const CheckpointShare& share, const PublishOptions& options) {
    const std::int64_t step = share.info.step;
    const auto failed = [&](const Error& why) { return not_written(dir, step, why); };
    const bool is_leader = group.rank() == 0;
    // Ranks wait in collectives for the one that writes longest.
    const ProcessGroup::LongerWait longer(group, RuntimeLimits{}.save_wait);
    Result<std::string> begun = std::string();
    if (is_leader) {
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
        gather_results(group, write_files(partial, share));
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
