#pragma once

namespace ddprun::rdzv {

/// The details of `/metrics` beside the figures of each job.
struct FiguresOf {
    bool nodes = false;  ///< of each node
    bool ranks = false;  ///< of each rank

    bool operator==(const FiguresOf&) const = default;
};

}  // namespace ddprun::rdzv
