#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "worker_runtime/comm/process_group.hpp"

namespace ddprun {

/// The ranks of a group as an array with named dimensions, and the sub-groups along each of them.
/// With eight ranks as {{"data", 2}, {"shard", 4}}, ranks 0 to 3 are one group along "shard", and
/// ranks 0 and 4 are one along "data": the last dimension varies first.
class Mesh {
public:
    struct Dimension {
        std::string name;
        int size = 1;
    };

    /// Every rank of `group` calls it with the same dimensions, whose sizes multiply to the group's
    /// world size. It makes a sub-group for each line of ranks; "PARENT/NAME" is the name of its
    /// engines in logs and in the flight recorder. InvalidArgument, on all ranks: dimensions that
    /// do not fit, or that differ between ranks. Else the errors of ProcessGroup::subgroup().
    [[nodiscard]] static Result<Mesh> make(ProcessGroup group, std::vector<Dimension> dimensions);

    /// The ranks that differ from this one in dimension `name` alone. This rank's number among them
    /// is its place in the dimension. InvalidArgument: there is no such dimension.
    [[nodiscard]] Result<ProcessGroup> along(const std::string& name) const;

    [[nodiscard]] const std::vector<Dimension>& dimensions() const { return dimensions_; }

private:
    Mesh(std::vector<Dimension> dimensions, std::vector<ProcessGroup> groups)
        : dimensions_(std::move(dimensions)), groups_(std::move(groups)) {}

    std::vector<Dimension> dimensions_;
    std::vector<ProcessGroup> groups_;  ///< this rank's along each dimension
};

}  // namespace ddprun
