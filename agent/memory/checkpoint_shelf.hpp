#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/memory_limits.hpp"
#include "base/result.hpp"
#include "base/tagged.hpp"
#include "worker_runtime/memory/protocol.hpp"

namespace ddprun::agent {

using BufferId = Tagged<struct BufferIdTag, std::uint64_t>;  ///< never given twice

using worker::StepKey;

/// The writer of files.
struct ShelfOwner {
    enum class Kind {
        Worker,   ///< a worker of this node, with its rank
        Copied,   ///< this program, as the partner of the node that has the worker of this rank
        Fetched,  ///< this program, because a worker here needs the file; the rank is a number
    };
    Kind kind = Kind::Worker;
    Rank rank;

    auto operator<=>(const ShelfOwner&) const = default;
};

/// Decides which checkpoints a node keeps in memory, and in which buffers. Pure: a buffer is a
/// number here, and a memfd in the shell.
///
/// A file is being written, then written. A step is sealed or not; at most one is. These rules
/// hold:
///
/// * Bound: the buffers of all files, and the free buffers, have at most `bytes_max` bytes, and
///   are at most memory_files_max. Free buffers make room for new files; if that is not enough, no
///   file of the request is begun.
/// * Reuse: a forgotten file leaves its buffer free. A file of the same size takes it, because the
///   kernel has its pages already. So the ranks write into two buffers in turn, and the sealed
///   step's are not touched. A worker may still write into a buffer that it has had: so until the
///   generation is over, only the same rank gets that buffer. A buffer that was opened to be read
///   is never free: the reader may still have it mapped, so it is dropped when its file is
///   forgotten, and no longer counts.
/// * Begin forgets the owner's files of other steps that are not sealed, and those of the same
///   step and name. The first Begin of a generation forgets all files of earlier generations that
///   are not sealed.
/// * Seal forgets everything but that step, and what the sealing generation has begun since. After
///   a roll-back that is a lower step than the last sealed one.
/// * A worker that has died leaves what it had written; its other files are forgotten.
/// * Stale: once a worker of a later generation has come, an earlier generation begins, writes and
///   seals nothing more.
class CheckpointShelf {
public:
    CheckpointShelf(std::uint64_t bytes_max, std::size_t files_max)
        : bytes_max_(bytes_max), files_max_(files_max) {}

    /// A worker of this generation has come. Refused if it is stale.
    [[nodiscard]] Result<void> greet(Generation generation);

    struct Room {
        BufferId buffer;
        std::uint64_t size = 0;
        bool is_new = false;  ///< false: the buffer was free, and has another file's bytes
    };
    /// Finds a buffer for each of `files`. Failure: none is begun; LimitExceeded, or Refused with
    /// the reason.
    [[nodiscard]] Result<std::vector<Room>> begin(const ShelfOwner& owner, const StepKey& key,
                                                  const std::vector<worker::MemoryFile>& files);

    /// The owner has written these files, which have these checksums. Failure: one of them is not
    /// being written by this owner, or has another size; then nothing has changed.
    [[nodiscard]] Result<void> finish(const ShelfOwner& owner, const StepKey& key,
                                      const std::vector<worker::MemoryFile>& files);

    /// The step counts, says a worker of generation `by`. Once more is no failure. Refused if it is
    /// stale, older than the sealed step, or not whole here.
    [[nodiscard]] Result<void> seal(Generation by, const StepKey& key);

    /// Forgets the files that this owner has begun and not written.
    void abandon(const ShelfOwner& owner);

    /// The same, when a buffer for one of them could not be made: their buffers are dropped.
    void abandon_unmade(const ShelfOwner& owner);

    /// The owner writes this file into this buffer, and it was not forgotten meanwhile.
    [[nodiscard]] bool is_being_written(const ShelfOwner& owner, const StepKey& key,
                                        const std::string& name, BufferId buffer) const;

    /// All written files, by step.
    [[nodiscard]] std::vector<worker::MemoryStep> list() const;

    struct Found {
        BufferId buffer;
        worker::MemoryFile file;
    };
    /// A written file; none: it is not here.
    [[nodiscard]] std::optional<Found> find(const StepKey& key, const std::string& name) const;

    /// As find(), for a reader who maps it.
    [[nodiscard]] std::optional<Found> open(const StepKey& key, const std::string& name);

    /// The buffers whose memory is to be given back, since the last call.
    [[nodiscard]] std::vector<BufferId> take_dropped() { return std::exchange(dropped_, {}); }

    [[nodiscard]] std::uint64_t bytes_used() const { return bytes_in_files_ + bytes_free_; }

private:
    struct File {
        ShelfOwner owner;
        worker::MemoryFile what;  ///< without checksum: being written
        BufferId buffer;
        bool is_dropped = false;  ///< when it is forgotten: a reader has had it

        [[nodiscard]] bool is_written() const { return !what.xxh3_128.empty(); }
    };
    using FileKey = std::pair<StepKey, std::string>;

    /// A buffer without a file.
    struct Free {
        BufferId buffer;
        std::uint64_t size = 0;
        std::optional<Rank> writer;  ///< the worker that may still have it; none: this program
        Generation generation;       ///< of that worker
    };

    [[nodiscard]] bool may_take(const Free& free, const ShelfOwner& owner,
                                Generation generation) const;
    [[nodiscard]] Result<void> check_new(const ShelfOwner& owner, const StepKey& key,
                                         const std::vector<worker::MemoryFile>& files) const;
    void forget_before(const ShelfOwner& owner, const StepKey& key,
                       const std::vector<worker::MemoryFile>& files);
    [[nodiscard]] Room take_free(const ShelfOwner& owner, Generation generation,
                                 std::uint64_t size);
    template <typename Predicate>
    void forget_if(Predicate is_forgotten);
    void release(const StepKey& key, const File& file);

    std::uint64_t bytes_max_;
    std::size_t files_max_;
    Generation newest_;  ///< of which a worker has come
    std::optional<StepKey> sealed_;
    std::map<FileKey, File> files_;
    std::vector<Free> free_;  ///< the oldest first
    std::uint64_t bytes_in_files_ = 0;
    std::uint64_t bytes_free_ = 0;
    std::vector<BufferId> dropped_;
    std::uint64_t last_buffer_ = 0;
};

}  // namespace ddprun::agent
