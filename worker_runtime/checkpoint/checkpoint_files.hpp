#pragma once

#include <cstdint>
#include <string>

#include "base/result.hpp"
#include "worker_runtime/checkpoint/file_io.hpp"
#include "worker_runtime/checkpoint/manifest.hpp"

/// The files of one checkpoint, as its manifest lists them. Blocking; for any one thread.
namespace ddprun::worker {

[[nodiscard]] std::string path_of(const std::string& dir, const std::string& name);

/// Reads and checks the manifest in `folder`, which `folder_fd` holds open. A manifest of another
/// step is an error.
[[nodiscard]] Result<Manifest> read_manifest(int folder_fd, const std::string& folder,
                                             std::int64_t step);

/// Opens a file that the manifest lists. A file of another size is an error.
[[nodiscard]] Result<OpenFile> open_listed(int folder_fd, const std::string& folder,
                                           const ManifestFile& listed);

/// Fails if `checksum`, of all bytes of `file`, is not the listed one.
[[nodiscard]] Result<void> check_checksum(const OpenFile& file, const ManifestFile& listed,
                                          const std::string& checksum);

/// Returns the manifest in `folder`, which `folder_fd` holds open, if its files all exist and have
/// the right sizes. The tensors are not read.
[[nodiscard]] Result<Manifest> look_into(int folder_fd, const std::string& folder,
                                         std::int64_t step);

/// The same of a checkpoint in `dir`.
[[nodiscard]] Result<Manifest> look_into(const std::string& dir, std::int64_t step);

}  // namespace ddprun::worker
