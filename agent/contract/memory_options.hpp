#pragma once

#include <cstdint>
#include <optional>

#include "rendezvous/wire/secret.hpp"
#include "rendezvous/wire/tls_files.hpp"

namespace ddprun::agent {

/// Checkpoints in the memory of this node: --memory-checkpoints and --memory-replicas.
struct MemoryOptions {
    std::optional<std::uint64_t> bytes_max;  ///< none: no checkpoint is kept in memory
    std::optional<rdzv::JobSecret> secret;   ///< proves this node to its partner; none: --insecure
    rdzv::TlsFiles tls;                      ///< all of them, or none: partners speak in clear
};

}  // namespace ddprun::agent
