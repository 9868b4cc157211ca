#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/os/unique_fd.hpp"
#include "base/result.hpp"
#include "base/tagged.hpp"
#include "worker_runtime/checkpoint/file_io.hpp"
#include "worker_runtime/checkpoint/manifest.hpp"
#include "worker_runtime/memory/protocol.hpp"

/// A worker's connection to ddprun-memory, which keeps its node's checkpoints in memory. Every
/// function blocks until the reply has come, RuntimeLimits::memory_reply_timeout at most; after a
/// reply that did not come, all functions fail. One thread at a time.
namespace ddprun::worker {

/// The checkpoints of one training: the folder that they also go to.
struct MemoryOwner {
    std::string series;
    int rank = 0;
    Generation generation;
};

class CheckpointMemory {
public:
    /// `socket`: the value of DDPRUN_MEMORY_CHECKPOINTS.
    [[nodiscard]] static Result<CheckpointMemory> connect(const std::string& socket,
                                                          const MemoryOwner& owner);

    /// HOST:PORT at which other nodes' programs reach this node's; empty: they do not.
    [[nodiscard]] const std::string& endpoint() const { return endpoint_; }

    /// The program at `endpoint` is to hold a copy of all files that are written from now on.
    [[nodiscard]] Result<void> set_partner(const std::string& endpoint);

    /// From now on files of `saved` are begun, written and sealed.
    void begin_save(const SavedStep& saved);

    /// Asks for memory for all files that this rank writes.
    [[nodiscard]] Result<std::vector<UniqueFd>> begin(const std::vector<MemoryFile>& files);

    /// Reports that `files` are written. Returns why the partner has no copy; an empty text if it
    /// has one, or there is no partner.
    [[nodiscard]] Result<std::string> written(const std::vector<ManifestFile>& files);

    /// From now on the step that this save has written counts, and older ones are forgotten.
    [[nodiscard]] Result<void> seal() { return seal(key_); }

    /// The same of a step that any generation has written.
    [[nodiscard]] Result<void> seal(const StepKey& key);

    /// The steps of which this node has files.
    [[nodiscard]] Result<std::vector<MemoryStep>> list();

    /// Opens a file for reading. A file of another size or checksum is an error.
    [[nodiscard]] Result<OpenFile> open(const StepKey& key, const ManifestFile& file);

    /// Copies a file from the program at `endpoint` into this node's memory.
    [[nodiscard]] Result<void> fetch(const StepKey& key, const ManifestFile& file,
                                     const std::string& endpoint);

private:
    struct Answer {
        MemoryReply reply;
        std::vector<UniqueFd> descriptors;
    };

    explicit CheckpointMemory(UniqueFd socket) : socket_(std::move(socket)) {}
    [[nodiscard]] Result<Answer> ask(const MemoryRequest& request);

    UniqueFd socket_;  ///< closed after a reply that did not come
    std::string endpoint_;
    StepKey key_;  ///< of the save that was begun last
};

}  // namespace ddprun::worker
