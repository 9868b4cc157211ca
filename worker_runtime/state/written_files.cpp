#include "worker_runtime/state/written_files.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include <nlohmann/json.hpp>

#include "worker_runtime/checkpoint/layout.hpp"
#include "worker_runtime/state/dtype_names.hpp"

namespace ddprun::worker {

namespace {

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
             .box = {.offsets = part[3].get<Numbers>(), .lengths = part[4].get<Numbers>()},
             .mesh_dimension = part[5].get<std::string>()});
    }
}

/// Adds rank 0's whole tensors under names that other ranks have for parts.
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

/// Fails unless the parts of each tensor are the whole, as a reader wants them.
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

}  // namespace

Result<std::string> described(const CheckpointShare& share,
                              const Result<std::vector<ManifestFile>>& files) {
    if (!files) {
        return files.error();
    }
    nlohmann::json list = nlohmann::json::array();
    for (const ManifestFile& file : *files) {
        list.push_back({file.name, file.size, file.xxh3_128});
    }
    nlohmann::json parts = nlohmann::json::array();
    for (const CheckpointShare::File& file : share.files) {
        const Result<std::vector<TensorView>> views = views_of(file.tensors);
        if (!views) {
            return views.error();
        }
        for (const TensorView& view : *views) {
            if (view.layout) {
                parts.push_back({view.name, view.dtype, view.layout->global_shape,
                                 view.layout->offsets, view.shape, view.layout->mesh_dimension});
            }
        }
    }
    return nlohmann::json{{"files", list}, {"parts", parts}}.dump();
}

Result<std::vector<ManifestFile>> files_of_all(const CheckpointShare& share,
                                               const std::vector<std::string>& written) {
    std::vector<ManifestFile> files;
    PartsByName parts;
    for (std::size_t rank = 0; rank < written.size(); ++rank) {
        add_written(written[rank], static_cast<int>(rank), files, parts);
    }
    const Result<void> whole = check_all_parts(share, std::move(parts));
    return whole ? Result<std::vector<ManifestFile>>(std::move(files)) : whole.error();
}

}  // namespace ddprun::worker
