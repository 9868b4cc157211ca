#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "base/tagged.hpp"

/// The contents of a checkpoint, as JSON: pure functions on text.
namespace ddprun::worker {

constexpr std::string_view kManifestName = "manifest.json";
/// The newest version, in which a manifest says which save of its step it is. The first save of a
/// step is written in version 2. Version 1, in which one process wrote one file with all tensors
/// under their full names, is read as well.
constexpr int kManifestVersion = 3;
/// Bounds on what is written and read.
constexpr std::size_t kManifestBytesMax = 16UL << 20;
constexpr int kManifestDepthMax = 3;
constexpr std::size_t kManifestFilesMax = 65'536;  // two for each of 32,768 ranks
constexpr std::size_t kManifestFileNameBytesMax = 200;

/// One save of a step, as SaveNumbers counts them. A later one is greater.
struct SavedStep {
    std::int64_t step = 0;
    std::uint64_t save = 0;

    auto operator<=>(const SavedStep&) const = default;
};

/// The contents of the manifest beside the list of files.
struct CheckpointInfo {
    std::int64_t step = 0;
    std::uint64_t save = 0;  ///< of SavedStep; 0 in manifests of before version 3
    Generation generation;
    int world_size = 1;
    std::map<std::string, std::string> values;  ///< small state: sampler position, learning rates …
};

/// One file of a checkpoint; `xxh3_128` in 32 lower-case hexadecimal digits.
struct ManifestFile {
    std::string name;
    std::uint64_t size = 0;
    std::string xxh3_128;

    bool operator==(const ManifestFile&) const = default;
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
