#pragma once

#include <cstddef>

#include "base/instant.hpp"

namespace ddprun {

/// Bounds of who asks a run and of who is told of it. Not with the others: what decides about jobs
/// does not depend on them.
struct WatchLimits {
    // Questions to a run on this machine.
    Milliseconds asked_stacks_timeout{10000};  ///< for ddpctl stacks; no restart waits for it
    /// of each log, and of each rank's stacks, in what ddpctl report --bundle packs
    std::size_t bundle_part_bytes_max = std::size_t{256} << 10;
    std::size_t bundle_logs_bytes_max = std::size_t{64} << 20;  ///< of all logs in it together

    // How far ranks are.
    Milliseconds watched_for{60000};       ///< nodes report it so long after a client has asked
    Milliseconds progress_interval{1000};  ///< of one node, between two times
    /// a node's interval is this times the number of reporting nodes: 250 messages a second in all
    Milliseconds progress_spacing{4};
    std::size_t watch_orders_max = 64;  ///< nodes asked to report, per turn of the daemon's loop
    std::size_t watch_lines_max = 64;   ///< nodes whose news are passed on in one turn of it
    std::size_t watchers_at_once = 4;   ///< that HTTP is spoken with in one turn of it
    /// of one address of another machine, of Limits::watchers_max: no one takes all
    std::size_t watchers_per_address_max = 256;
    std::size_t http_texts_bytes_max = std::size_t{64} << 20;  ///< of answers, until taken
    std::size_t status_ranks_max = 65536;  ///< ranks listed in one answer to /status
    /// steps/s are over at least so much, where the rank has trained so long: some dozens of steps
    Milliseconds pace_window{10000};
    std::size_t pace_samples_max = 16;  ///< kept of each rank, within the window
    /// a job in which no rank told a step for so long, and for so many of its steps, is stalled
    Milliseconds stall_after{10000};
    int stall_steps = 10;  ///< a checkpoint or an evaluation of some steps' time is no stall
    Milliseconds stall_unpaced_after{60000};  ///< the same before the second step of a generation
    Milliseconds stall_output_after{30000};   ///< the same of output, if no rank reports steps
    std::size_t stall_ranks_named = 4;        ///< of those for which the others wait
    /// between two reports of a node's saves: of those that end meanwhile the last one is reported
    Milliseconds saves_interval{1000};
    std::size_t save_reason_columns_max = 500;  ///< characters in which a node says why one failed
    int saves_late = 3;  ///< so many in a row: the disk falls behind; as many in time: no longer
    /// between two looks for the live line of a terminal, which is drawn anew if it has changed
    Milliseconds live_line_interval{500};

    /// the default group of programs that report nothing is taken to be connected when it has asked
    /// the store for nothing for so long
    Milliseconds group_quiet{1000};

    // GPUs and memory.
    Milliseconds gpu_figures_timeout{5000};    ///< for NVIDIA's driver to report them
    std::size_t gpu_answer_bytes_max = 65536;  ///< a GPU's number and bytes take 30 at most
    /// first pause between two checks whether ended workers' memory is freed: the driver has no
    /// event for that
    Milliseconds gpu_memory_look_min{1};
    Milliseconds gpu_memory_look_max{128};  ///< each pause is twice the one before, up to this
    Milliseconds gpu_busy_after{60000};     ///< then a line says whether all GPUs are used
    int gpu_busy_looks = 12;                ///< at them within that time
    int gpu_idle_permille = 50;             ///< a GPU that was at work less is idle
    Milliseconds host_memory_look{10000};   ///< between two readings of the node's memory
    int host_memory_high_permille = 900;    ///< in use: one line says so

    // Hangs that are only spoken of (--hang-notice).
    int hang_notice_looks = 4;         ///< within that time, at all of its signs
    int waiting_power_permille = 500;  ///< of the most power that a GPU drew: it waits
    Milliseconds ras_timeout{10000};   ///< for NCCL's RAS to answer, which asks all nodes
    std::size_t ras_answer_bytes_max = std::size_t{4} << 20;  ///< read of its answer
};

}  // namespace ddprun
