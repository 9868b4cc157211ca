#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/read_ahead_limits.hpp"

/// Reading a checkpoint ahead of who will load it. Everything here may block for as long as a file
/// system likes.
namespace ddprun::agent {

/// The regular files of the newest checkpoint at `place`, in the order in which they are likely to
/// be read: a file itself; of a folder with checkpoints of the worker runtime the newest that is
/// complete; of another one newest_checkpoint(), and if that is a folder all in it. Links in
/// folders are not followed. Empty: there is none, or that cannot be known.
[[nodiscard]] std::vector<std::string> files_ahead(const std::string& place,
                                                   const ReadAheadLimits& limits);

/// Reads the file, the first `bytes_max` of it, so that the kernel has it in memory. Returns how
/// many bytes it has: 0 if it is no regular file that may be read.
std::uint64_t read_ahead(const std::string& path, std::uint64_t bytes_max,
                         const ReadAheadLimits& limits);

}  // namespace ddprun::agent
