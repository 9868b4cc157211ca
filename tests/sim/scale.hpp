#pragma once

#include <cstddef>
#include <vector>

namespace ddprun::sim {

/// The cost of one coordinator with `nodes` nodes: CPU time of one core, each message encoded by
/// its sender and decoded by its receiver. The cost of sockets is not included.
struct ScaleRow {
    int nodes = 0;
    double form_ms = 0;     ///< from the first join to the last node's Start
    double join_us = 0;     ///< of a spare, while a generation runs
    double beat_us = 0;     ///< and its acknowledgement
    double failure_ms = 0;  ///< from one node's end to the last member's Stop
    double restart_ms = 0;  ///< from the first Stopped to the last Start
    double end_ms = 0;      ///< from the first exit 0 to the last Goodbye
    double end_us = 0;      ///< per member
    double failure_us = 0;  ///< per node that is told
    double restart_us = 0;  ///< per member
    double record_ms = 0;   ///< what the journal is given
    std::size_t record_bytes = 0;
    int form_records = 0;     ///< asked for until the first generation was started
    int restart_records = 0;  ///< from one node's end to the last Start
    int end_records = 0;
    double tick_us = 0;  ///< a timer that finds nothing due
    std::size_t join_bytes = 0;
    std::size_t start_bytes = 0;  ///< of a member that does not serve the store
    std::size_t store_start_bytes = 0;
    std::size_t stop_bytes = 0;
};

[[nodiscard]] ScaleRow measure_scale(int nodes);

void print_scale(const std::vector<ScaleRow>& rows);

}  // namespace ddprun::sim
