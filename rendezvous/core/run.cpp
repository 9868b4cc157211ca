#include "rendezvous/core/run.hpp"

namespace ddprun::rdzv {

std::size_t minimum(const Run& run) {
    return static_cast<std::size_t>(run.settings.min_nodes);
}

std::size_t maximum(const Run& run) {
    return static_cast<std::size_t>(run.settings.max_nodes);
}

bool is_closed(const Run& run) {
    return std::holds_alternative<Closed>(run.phase);
}

}  // namespace ddprun::rdzv
