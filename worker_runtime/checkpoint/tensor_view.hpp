#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "worker_runtime/checkpoint/layout.hpp"

namespace ddprun::worker {

/// One tensor's name, safetensors dtype ("F32", "BF16", "I64", …), shape and bytes (row-major,
/// little-endian). The bytes are not owned.
struct TensorView {
    std::string name;
    std::string dtype;
    std::vector<std::int64_t> shape;
    std::span<const std::byte> bytes;
    /// The place of a part; nothing: this is the whole tensor.
    std::optional<Layout> layout = std::nullopt;
};

}  // namespace ddprun::worker
