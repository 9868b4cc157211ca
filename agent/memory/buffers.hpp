#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "agent/memory/checkpoint_shelf.hpp"
#include "base/os/unique_fd.hpp"
#include "base/result.hpp"

namespace ddprun::agent {

/// The memory behind the buffers of a CheckpointShelf: a memfd for each, whose size never changes.
class Buffers {
public:
    [[nodiscard]] Result<void> make(BufferId id, std::uint64_t size);
    void drop(const std::vector<BufferId>& ids);

    // Descriptors of their own, with an offset of their own. The buffer exists.
    [[nodiscard]] Result<UniqueFd> open_to_write(BufferId id) const;
    [[nodiscard]] Result<UniqueFd> open_to_read(BufferId id) const;

    /// Appends `size` bytes from `offset` on to `out`. The buffer exists and has them.
    [[nodiscard]] Result<void> read(BufferId id, std::uint64_t offset, std::size_t size,
                                    std::string& out) const;
    [[nodiscard]] Result<void> write(BufferId id, std::uint64_t offset,
                                     std::span<const std::byte> bytes);

private:
    std::map<BufferId, UniqueFd> files_;
};

/// The checkpoints of one node: the decisions and the memory.
struct KeptCheckpoints {
    CheckpointShelf shelf;
    Buffers buffers = {};

    /// As CheckpointShelf::begin(), with the memory for it. If there is none, the files that the
    /// owner has begun are forgotten.
    [[nodiscard]] Result<std::vector<CheckpointShelf::Room>> begin(
        const ShelfOwner& owner, const StepKey& key, const std::vector<worker::MemoryFile>& files);
    /// After a call that may have forgotten files.
    void drop_forgotten() { buffers.drop(shelf.take_dropped()); }
};

}  // namespace ddprun::agent
