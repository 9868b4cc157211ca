#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/os/unique_fd.hpp"
#include "base/result.hpp"
#include "base/tagged.hpp"
#include "worker_runtime/checkpoint/manifest.hpp"

/// The messages between a worker and ddprun-memory, the program that keeps the checkpoints of a
/// node's workers in memory. A worker connects to the socket that DDPRUN_MEMORY_CHECKPOINTS names,
/// and sends one request at a time; each has one reply. One packet holds one message, as JSON, with
/// the descriptors that belong to it. README.md has the whole.
namespace ddprun::worker {

/// Bytes of one packet, and descriptors beside it.
constexpr std::size_t kMemoryPacketBytesMax = 128UL << 10;
constexpr std::size_t kMemoryDescriptorsMax = 16;
constexpr std::size_t kMemorySeriesBytesMax = 4096;

/// One save of a step. After a roll-back a later generation writes the same step again; within a
/// generation a later save of a step replaces the earlier one.
struct StepKey {
    Generation generation;
    std::int64_t step = 0;
    std::uint64_t save = 0;  ///< of SavedStep: every rank counts alike

    auto operator<=>(const StepKey&) const = default;
};

enum class MemoryVerb {
    /// The first request: who this is. The reply has the endpoint of this node's program, empty if
    /// it serves no other node.
    Hello,
    /// Names the endpoint of the partner, which is to hold a copy of all that is written from now
    /// on. Empty: none.
    Partner,
    /// Asks for memory for `files` of a step, at most kMemoryDescriptorsMax; the reply has a
    /// writable descriptor for each, of the file's size and with any content. More files of the
    /// step, such as its manifest, may be begun later. The program forgets this owner's files of
    /// other steps that are not sealed, and its files of the same step and names; at the first
    /// Begin of a generation, all files of earlier ones that are not sealed. Refused if it would
    /// pass the bound, and for a save that is sealed.
    Begin,
    /// `files` are written and have these checksums. The reply comes once the partner, if there is
    /// one, has them, too, but for the manifest, which each node writes; `note` says why it has
    /// not.
    Written,
    /// The manifest of the step is written, and all files that it lists are somewhere: the step
    /// counts. Older steps are forgotten. Each worker seals before its next Begin; sealing once
    /// more is no failure. A generation that has resumed from a step which is not sealed seals it
    /// first, with the generation that wrote it.
    Seal,
    /// The reply has the files of all steps that are kept here.
    List,
    /// Asks for a descriptor to read one file.
    Open,
    /// Has one file copied from the program at `endpoint`. The reply comes once it is here and has
    /// the checksum.
    Fetch,
};

/// A file of a step, in the memory of one node; without a checksum until it is written.
using MemoryFile = ManifestFile;

/// Letters, digits and `._-`, not beginning with a dot; as in a manifest, and manifest.json too.
[[nodiscard]] bool is_memory_file_name(std::string_view name);

struct MemoryRequest {
    MemoryVerb verb = MemoryVerb::Hello;
    std::string series;             ///< Hello: the training; others see nothing of its files
    int rank = 0;                   ///< Hello: owns what this connection begins
    StepKey key;                    ///< all but Partner, List. Hello: this worker's generation.
                                    ///< Begin, Written: its own generation counts, whatever this
                                    ///< says; Seal: generation 0 is its own
    std::vector<MemoryFile> files;  ///< Begin, Written; Open, Fetch: one
    std::string endpoint;           ///< Partner, Fetch: HOST:PORT
};

/// The files of one step that are written.
struct MemoryStep {
    StepKey key;
    bool is_sealed = false;
    std::vector<MemoryFile> files;
};

struct MemoryReply {
    std::optional<Error> error;
    std::string note;  ///< Written: why the partner has no copy; empty: it has, or there is none
    std::string endpoint;           ///< Hello
    std::vector<MemoryStep> steps;  ///< List
};

[[nodiscard]] std::string encode(const MemoryRequest& request);
[[nodiscard]] std::string encode(const MemoryReply& reply);

/// Strict: unknown verbs, fields and types, and names that are no plain names, are errors. Never
/// throws.
[[nodiscard]] Result<MemoryRequest> decode_memory_request(std::string_view text);
[[nodiscard]] Result<MemoryReply> decode_memory_reply(std::string_view text);

/// A message and its descriptors.
struct MemoryPacket {
    std::string text;
    std::vector<UniqueFd> descriptors;
};

/// Sends on a SOCK_SEQPACKET socket; blocks if that does. No SIGPIPE.
[[nodiscard]] Result<void> send_packet(int socket, std::string_view text,
                                       const std::vector<int>& descriptors);

/// The next packet; ConnectionLost if the other end has closed. A packet over the bounds is an
/// error.
[[nodiscard]] Result<MemoryPacket> receive_packet(int socket);

}  // namespace ddprun::worker
