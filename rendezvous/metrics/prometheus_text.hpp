#pragma once

#include "rendezvous/metrics/job_figures.hpp"

namespace ddprun::rdzv {

/// Prometheus' text format, version 0.0.4; docs/metrics.md lists the figures. The returned function
/// is pure. Empty: this was built without prometheus-cpp.
[[nodiscard]] MetricsText prometheus_text();

}  // namespace ddprun::rdzv
