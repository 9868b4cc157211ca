#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "worker_runtime/checkpoint/checkpoint_folder.hpp"

/// The contents of a checkpoint, as JSON: pure functions on text.
namespace ddprun::worker {

constexpr std::string_view kManifestName = "manifest.json";
constexpr int kManifestVersion = 1;
/// Bounds on what is written and read.
constexpr std::size_t kManifestBytesMax = 16UL << 20;
constexpr int kManifestDepthMax = 3;
constexpr std::size_t kManifestFilesMax = 4096;
constexpr std::size_t kManifestFileNameBytesMax = 200;

/// One file of a checkpoint; `xxh3_128` in 32 lower-case hexadecimal digits.
struct ManifestFile {
    std::string name;
    std::uint64_t size = 0;
    std::string xxh3_128;
};

struct Manifest {
    CheckpointInfo info;
    std::vector<ManifestFile> files;
};

/// Refuses values that are no UTF-8, a world size below 1 and a text over the bound.
[[nodiscard]] Result<std::string> format_manifest(const Manifest& manifest);

/// Strict: the checksum at the end of the text must be right, nothing may be missing, unknown or
/// double, and file names are plain names. Never throws.
[[nodiscard]] Result<Manifest> parse_manifest(std::string_view text);

}  // namespace ddprun::worker
