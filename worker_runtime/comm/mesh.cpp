#include "worker_runtime/comm/mesh.hpp"

#include <cstdint>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "worker_runtime/comm/votes.hpp"

namespace ddprun {

namespace {

/// "data 2 x shard 4".
std::string text_of(const std::vector<Mesh::Dimension>& dimensions) {
    std::vector<std::string> texts;
    for (const Mesh::Dimension& dimension : dimensions) {
        texts.push_back(fmt::format("{} {}", dimension.name, dimension.size));
    }
    return fmt::format("{}", fmt::join(texts, " x "));
}

Result<std::string> checked_text(const std::vector<Mesh::Dimension>& dimensions, int world_size) {
    const std::string text = text_of(dimensions);
    std::int64_t product = 1;
    std::set<std::string> names;
    for (const Mesh::Dimension& dimension : dimensions) {
        if (dimension.size < 1 || dimension.name.empty() || !names.insert(dimension.name).second) {
            return Error{ErrorCode::InvalidArgument,
                         fmt::format("a mesh of {}: each dimension needs a name of its own, and a "
                                     "size of at least 1",
                                     text)};
        }
        product *= dimension.size;
        if (product > world_size) {
            break;
        }
    }
    if (product != world_size) {
        return Error{ErrorCode::InvalidArgument,
                     fmt::format("a mesh of {} does not have the {} ranks of its group: the sizes "
                                 "must multiply to that",
                                 text, world_size)};
    }
    return text;
}

}  // namespace

Result<Mesh> Mesh::make(ProcessGroup group, std::vector<Dimension> dimensions) {
    const int world = group.world_size();
    const Result<std::vector<std::string>> texts =
        worker::gather_results(group, checked_text(dimensions, world));
    if (!texts) {
        return texts.error();
    }
    for (std::size_t rank = 1; rank < texts->size(); ++rank) {
        if ((*texts)[rank] != texts->front()) {
            return Error{ErrorCode::InvalidArgument,
                         fmt::format("the ranks make different meshes: rank 0 one of {}, rank {} "
                                     "one of {}",
                                     texts->front(), rank, (*texts)[rank])};
        }
    }
    std::vector<ProcessGroup> groups;
    int stride = world;
    for (const Dimension& dimension : dimensions) {
        stride /= dimension.size;
        std::optional<ProcessGroup> own;
        // A line begins at each rank whose place in this dimension is 0.
        for (int first = 0; first < world; ++first) {
            if (first / stride % dimension.size != 0) {
                continue;
            }
            std::vector<int> line;
            for (int place = 0; place < dimension.size; ++place) {
                line.push_back(first + place * stride);
            }
            Result<std::optional<ProcessGroup>> part = group.subgroup(line, dimension.name);
            if (!part) {
                return part.error();
            }
            if (*part) {
                own = **part;
            }
        }
        groups.push_back(*own);
    }
    return Mesh(std::move(dimensions), std::move(groups));
}

Result<ProcessGroup> Mesh::along(const std::string& name) const {
    for (std::size_t i = 0; i < dimensions_.size(); ++i) {
        if (dimensions_[i].name == name) {
            return groups_[i];
        }
    }
    return Error{ErrorCode::InvalidArgument,
                 fmt::format("a mesh of {} has no dimension {}", text_of(dimensions_), name)};
}

}  // namespace ddprun
