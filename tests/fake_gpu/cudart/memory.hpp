#pragma once

#include <cstddef>
#include <optional>

namespace fake_gpu {

/// Memory that CUDA knows of. That of a device is host memory, too.
struct Block {
    void* start = nullptr;
    std::size_t bytes = 0;
    int device = 0;
    bool is_on_host = false;     ///< pinned
    bool is_registered = false;  ///< the program's own, which it keeps
};

/// The block that holds the address; none: pageable memory.
[[nodiscard]] std::optional<Block> block_at(const void* address);

}  // namespace fake_gpu
