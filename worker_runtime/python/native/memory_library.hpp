#pragma once

#include <cstdint>

#include "worker_runtime/python/native/checkpoint_library.hpp"

/// worker_runtime/memory for Python, as checkpoint_library.hpp is worker_runtime/checkpoint: the
/// part of one rank. The ranks agree in Python between the calls, as MemoryTier's do.
extern "C" {

/// A rank's connection to ddprun-memory, or the reason why it has none. One thread at a time.
struct DdprunMemory;

/// MemoryOwner and PlaceOnNode.
struct DdprunMemoryPlace {
    const char* socket;  ///< empty: the node keeps no checkpoints
    const char* series;
    std::uint64_t generation;
    std::int32_t rank;
    std::int32_t local_rank;
    std::int32_t local_world_size;
    std::int32_t group_rank;
};

/// TensorFile; `file` has the name, and its size and checksum are filled in.
struct DdprunTensorFile {
    const char* prefix;
    const DdprunTensor* tensors;
    std::uint64_t count;
    DdprunFile file;
};

/// A MemoryCandidate without its manifest.
struct DdprunCandidate {
    std::int64_t step;
    std::int32_t manifest_rank;  ///< the first rank of the node that has the manifest
};

/// CheckpointMemory::connect(); without a connection it is a success, too. `memory` is to be
/// closed. `text` is for all ranks. Each `text`, here and below, is good until the next call.
std::int32_t ddprun_checkpoint_memory_connect(const DdprunMemoryPlace* place, DdprunMemory** memory,
                                              const char** text, DdprunError* error);
void ddprun_checkpoint_memory_close(DdprunMemory* memory);

/// agreement_of() the texts of all ranks, and set_partner(). `partner` is a group rank, below 0:
/// none. `line` is for people, unless it is empty.
std::int32_t ddprun_checkpoint_memory_agree(DdprunMemory* memory, const char* const* texts,
                                            std::uint64_t count, std::int32_t partner,
                                            std::int32_t* is_kept, std::int32_t* has_partner,
                                            DdprunError* line, DdprunError* error);

/// CheckpointMemory::begin_save()
std::int32_t ddprun_checkpoint_memory_begin_save(DdprunMemory* memory, std::int64_t step,
                                                 std::uint64_t save, DdprunError* error);

/// write_files(). `note` says why the partner has no copy, unless it is empty.
std::int32_t ddprun_checkpoint_memory_write(DdprunMemory* memory, DdprunTensorFile* files,
                                            std::uint64_t count, DdprunError* note,
                                            DdprunError* error);

/// format_manifest()
std::int32_t ddprun_checkpoint_memory_manifest(DdprunMemory* memory, std::int64_t step,
                                               const DdprunManifest* manifest, const char** text,
                                               DdprunError* error);

/// write_manifest()
std::int32_t ddprun_checkpoint_memory_write_manifest(DdprunMemory* memory, const char* manifest,
                                                     std::int32_t is_isolated, DdprunError* error);

/// seal()
std::int32_t ddprun_checkpoint_memory_seal(DdprunMemory* memory, DdprunError* error);

/// copies_text()
std::int32_t ddprun_checkpoint_memory_copies(DdprunMemory* memory, const char** text,
                                             DdprunError* error);

/// candidates_among() the copies_text() of all ranks, at least save `at_least_save` of step
/// `at_least`; returns how many there are in `found`, and
/// unlisted_line() in `line`.
std::int32_t ddprun_checkpoint_memory_candidates(DdprunMemory* memory, const char* const* texts,
                                                 std::uint64_t count, std::int64_t at_least,
                                                 std::uint64_t at_least_save, std::uint64_t* found,
                                                 const char** line, DdprunError* error);
/// The `index`th; 1 if there is none.
std::int32_t ddprun_checkpoint_memory_candidate(const DdprunMemory* memory, std::uint64_t index,
                                                DdprunCandidate* candidate);

/// read_manifest()
std::int32_t ddprun_checkpoint_memory_read_manifest(DdprunMemory* memory, std::uint64_t index,
                                                    const char** text, DdprunError* error);

/// fetch_missing()
std::int32_t ddprun_checkpoint_memory_fetch(DdprunMemory* memory, std::uint64_t index,
                                            const char* manifest, DdprunError* error);

/// load_copies() of the candidate that was fetched last. `open` is to be closed.
std::int32_t ddprun_checkpoint_memory_open(DdprunMemory* memory, DdprunOpen** open,
                                           DdprunInfo* info, DdprunError* error);

/// keep() the candidate that was fetched last. `line` is for people, unless it is empty.
std::int32_t ddprun_checkpoint_memory_keep(DdprunMemory* memory, const char** line,
                                           DdprunError* error);

}  // extern "C"
