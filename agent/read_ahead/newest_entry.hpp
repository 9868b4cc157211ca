#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ddprun::agent {

/// An entry of a folder where a program has its checkpoints.
struct FolderEntry {
    std::string name;
    bool is_folder = false;
    std::int64_t changed_ns = 0;  ///< when its content changed last, since 1970
};

/// The newest of those that look like a checkpoint of a Python program: files that end in .pt,
/// .pth, .ckpt, .safetensors, .bin or .tar, and folders whose name ends in a digit. Among equally
/// new ones, the last by name wins. Returns nothing if no entry looks so.
[[nodiscard]] std::optional<FolderEntry> newest_checkpoint(const std::vector<FolderEntry>& entries);

}  // namespace ddprun::agent
