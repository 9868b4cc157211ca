#pragma once

#include <cstddef>
#include <cstdint>

#include "base/instant.hpp"

namespace ddprun {

/// Bounds of ddprun-memory. Not with the others: what decides about jobs does not depend on them.
struct MemoryLimits {
    // Checkpoints in memory.
    std::size_t memory_workers_max = 2048;  ///< connections of workers: twice a node's slots
    std::size_t memory_files_max = 16384;   ///< of all steps together; each takes a descriptor
    std::size_t memory_peers_max = 64;      ///< connections of other nodes' programs at once
    std::size_t memory_offers_max = 64;     ///< of one such connection, that wait for their answer
    std::size_t memory_piece_bytes_max = std::size_t{512} << 10;  ///< one request for a file's part
    std::size_t memory_pieces_ahead = 12;  ///< requested of one peer and not yet received
    /// copied from other nodes by one program, each second: half of a link of 25 Gbit/s, the rest
    /// is the training's
    std::uint64_t memory_copy_bytes_per_second = std::uint64_t{1500} << 20;
    /// of these, saved up while nothing is copied
    std::uint64_t memory_copy_burst_bytes = std::uint64_t{8} << 20;
    Milliseconds memory_connect_timeout{3000};  ///< to reach another node's program and prove ours
    Milliseconds memory_peer_timeout{10000};    ///< a copy that does not go on for so long failed
    Milliseconds memory_idle_timeout{60000};    ///< a connection to a partner is kept so long
    std::size_t memory_settings_bytes_max = 32768;  ///< what ddprun tells the program at its start
};

}  // namespace ddprun
