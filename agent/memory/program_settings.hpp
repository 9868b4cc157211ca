#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "base/tagged.hpp"
#include "rendezvous/wire/secret.hpp"
#include "rendezvous/wire/tls_files.hpp"

namespace ddprun::agent {

/// The descriptors of ddprun-memory beside its stdin, a stream socket from ddprun: the settings
/// come there in one line, and lines for the user go back. Its end ends the program.
inline constexpr int kWorkersListenerFd = 3;
inline constexpr int kPeersListenerFd = 4;  ///< if the settings say so

/// The settings of ddprun-memory. They travel over its stdin: they hold the job's secret, which
/// neither arguments nor environment may show.
struct ProgramSettings {
    std::uint64_t bytes_max = 0;
    bool has_peers = false;  ///< other nodes' programs copy from this one, and it from them
    JobId job;
    std::optional<rdzv::JobSecret> secret;  ///< none: --insecure
    rdzv::TlsFiles tls;                     ///< all of them, or none
};

/// One line, with its end.
[[nodiscard]] std::string encode_settings(const ProgramSettings& settings);

/// Failure names no value: one of them is the secret.
[[nodiscard]] Result<ProgramSettings> decode_settings(std::string_view line);

}  // namespace ddprun::agent
