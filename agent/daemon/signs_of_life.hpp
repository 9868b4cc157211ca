#pragma once

#include <cstddef>

#include "agent/core/quiet_watch.hpp"
#include "agent/daemon/keeper_handle.hpp"
#include "agent/daemon/shared_page.hpp"
#include "agent/helpers/stack_saver.hpp"
#include "agent/output/worker_output.hpp"
#include "base/tagged.hpp"

namespace ddprun::agent {

/// What the `workers` of `generation` have shown until now. Reads a few files of the kernel's.
[[nodiscard]] SignsOfLife signs_of_life(const OutputMeasure& output, const KeeperHandle& keeper,
                                        const SharedPage& page, const StackSaver& stacks,
                                        Generation generation, std::size_t workers);

}  // namespace ddprun::agent
