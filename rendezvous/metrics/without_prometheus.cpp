#include "rendezvous/metrics/prometheus_text.hpp"

namespace ddprun::rdzv {

MetricsText prometheus_text() {
    return {};
}

}  // namespace ddprun::rdzv
