#pragma once

#include <cstddef>

#include "agent/core/quiet_watch.hpp"
#include "agent/daemon/shared_page.hpp"
#include "agent/helpers/stack_saver.hpp"
#include "agent/output/worker_output.hpp"
#include "base/instant.hpp"
#include "base/tagged.hpp"

namespace ddprun::agent {

/// What the `workers` of `generation` have shown until now, `cpu` and `output` among it.
[[nodiscard]] SignsOfLife signs_of_life(const OutputMeasure& output, Duration cpu,
                                        const SharedPage& page, const StackSaver& stacks,
                                        Generation generation, std::size_t workers);

}  // namespace ddprun::agent
