#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

/// The JSON header of a safetensors file, read event by event: a hostile one of a hundred million
/// bytes never becomes a tree.
namespace ddprun::worker {

/// The key beside the tensors' names that holds texts about the file.
constexpr std::string_view kSafetensorsMetadataKey = "__metadata__";

/// The header's entry for one tensor; type, shape and place are not yet checked against
/// each other.
struct SafetensorsEntry {
    std::string name;
    std::string dtype;
    std::vector<std::int64_t> shape;
    std::uint64_t begin = 0;  ///< first byte, counted from the end of the header
    std::uint64_t end = 0;
};

struct SafetensorsHeader {
    std::vector<SafetensorsEntry> entries;        ///< in the header's order
    std::map<std::string, std::string> metadata;  ///< the texts about the file
};

/// Refuses any JSON but the format's, and names that occur twice. Never throws.
[[nodiscard]] Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> header);

}  // namespace ddprun::worker
