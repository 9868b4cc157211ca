#pragma once

#include <cstddef>
#include <optional>

namespace fake_gpu {

/// Memory that CUDA knows of. A device's memory is host memory, too.
struct Block {
    void* start = nullptr;
    std::size_t bytes = 0;
    int device = 0;
    bool is_on_host = false;     ///< pinned
    bool is_registered = false;  ///< the program's own, which it keeps
};

/// Returns the block that holds the address, and none for pageable memory.
[[nodiscard]] std::optional<Block> block_at(const void* address);

}  // namespace fake_gpu
