#pragma once

#include <cstdint>

/// worker_runtime/checkpoint for Python, and, in memory_library.hpp, worker_runtime/memory: C
/// functions on plain structs, which ctypes calls, so that one library serves every Python. It has
/// no state of its own but the checkpoints that are open.
///
/// Functions that can fail return 0, or 1 and more: the ErrorCode plus 1; `error` then has the
/// text. They block, may be called from any thread and throw nothing. Texts are UTF-8 that ends
/// with NUL. Null pointers, and texts and numbers over the bounds, are errors. Each function calls
/// the one of worker_runtime/checkpoint that its name or comment says, whose header has the
/// contract.
extern "C" {

/// Grows when a function or struct changes.
constexpr std::int32_t kDdprunCheckpointAbi = 4;

struct DdprunError {
    char text[4096];  ///< cut if longer
};

/// PartialCheckpoint.
struct DdprunPartial {
    const char* dir;
    std::int64_t step;
    char name[128];
};

/// TensorView. `global_shape`, `offsets` and `mesh_dimension` are null if it is the whole tensor.
struct DdprunTensor {
    const char* name;
    const char* dtype;
    std::uint64_t dimensions;
    const std::int64_t* shape;
    const std::int64_t* global_shape;
    const std::int64_t* offsets;
    const char* mesh_dimension;
    const void* bytes;
    std::uint64_t size;
};

/// ManifestFile.
struct DdprunFile {
    char name[256];
    std::uint64_t size;
    char xxh3_128[64];
};

/// A key and its text.
struct DdprunText {
    const char* key;
    const char* text;
};

/// Manifest, and PublishOptions.
struct DdprunManifest {
    std::uint64_t save;
    std::uint64_t generation;
    std::int32_t world_size;
    std::int32_t keep;
    std::int64_t keep_every;
    const DdprunText* values;
    std::uint64_t value_count;
    const DdprunFile* files;
    std::uint64_t file_count;
    std::int32_t (*is_isolated)();
    void (*on_warning)(const char* text);
};

/// An open checkpoint.
struct DdprunOpen;

struct DdprunInfo {
    std::uint64_t save;
    std::uint64_t generation;
    std::int32_t world_size;
    std::uint64_t value_count;
    std::uint64_t tensor_count;
};

/// StoredTensor; the pointers are good until the checkpoint is closed.
struct DdprunStored {
    const char* name;
    const char* dtype;
    std::uint64_t dimensions;
    const std::int64_t* shape;
    std::uint64_t part_count;
};

struct DdprunPart {
    const std::int64_t* offsets;
    const std::int64_t* lengths;
    const void* bytes;
    std::uint64_t size;
};

std::int32_t ddprun_checkpoint_abi();

/// Raises the word and wakes all processes that wait for it, a futex.
void ddprun_checkpoint_ring(std::uint32_t* bell);

/// Fills in partial->step and partial->name.
std::int32_t ddprun_checkpoint_begin_probe(DdprunPartial* partial, DdprunError* error);
std::int32_t ddprun_checkpoint_probe(const DdprunPartial* partial, const char* name,
                                     DdprunError* error);

/// Fills in partial->name.
std::int32_t ddprun_checkpoint_begin(DdprunPartial* partial, std::uint64_t bytes,
                                     DdprunError* error);

/// tensor_file_name()
std::int32_t ddprun_checkpoint_file_name(const char* kind, std::int32_t number, std::int32_t count,
                                         DdprunFile* file, DdprunError* error);

/// Writes the tensors into file->name, and fills in the rest of `file`.
std::int32_t ddprun_checkpoint_write_tensors(const DdprunPartial* partial, const char* prefix,
                                             const DdprunTensor* tensors, std::uint64_t count,
                                             DdprunFile* file, DdprunError* error);

/// `files`: tensor and file. Fills in `file`.
std::int32_t ddprun_checkpoint_write_model_index(const DdprunPartial* partial,
                                                 const DdprunText* files, std::uint64_t count,
                                                 std::uint64_t bytes, DdprunFile* file,
                                                 DdprunError* error);

std::int32_t ddprun_checkpoint_publish(const DdprunPartial* partial, const DdprunManifest* manifest,
                                       DdprunError* error);

void ddprun_checkpoint_abandon(const DdprunPartial* partial);

/// Writes at most `capacity` steps, newest first; `count` is how many there are.
std::int32_t ddprun_checkpoint_list(const char* dir, std::int64_t* steps, std::uint64_t capacity,
                                    std::uint64_t* count, DdprunError* error);

/// save_of_checkpoint()
std::int32_t ddprun_checkpoint_save_of(const char* dir, std::int64_t step, std::uint64_t* save,
                                       DdprunError* error);

void ddprun_checkpoint_remove_leftovers(const char* dir);

/// verify_checkpoint()
std::int32_t ddprun_checkpoint_verify(const char* dir, std::int64_t step, DdprunError* error);

/// share_out(): writes the rank of each of `sizes` into `ranks`.
std::int32_t ddprun_checkpoint_share_out(const std::uint64_t* sizes, std::uint64_t count,
                                         std::int32_t world_size, std::int32_t* ranks,
                                         DdprunError* error);

/// check_parts(): rank `ranks[i]` has `parts[i]`, at least one, all of one tensor. No bytes are
/// read.
std::int32_t ddprun_checkpoint_check_parts(const DdprunTensor* parts, const std::int32_t* ranks,
                                           std::uint64_t count, DdprunError* error);

/// read_checkpoint(). `open` is to be closed.
std::int32_t ddprun_checkpoint_open(const char* dir, std::int64_t step, std::uint64_t reader,
                                    std::uint64_t readers, DdprunOpen** open, DdprunInfo* info,
                                    DdprunError* error);
/// The `index`th; 1 if there is none.
std::int32_t ddprun_checkpoint_value(const DdprunOpen* open, std::uint64_t index, DdprunText* text);
std::int32_t ddprun_checkpoint_tensor(const DdprunOpen* open, std::uint64_t index,
                                      DdprunStored* tensor);
std::int32_t ddprun_checkpoint_part(const DdprunOpen* open, std::uint64_t tensor,
                                    std::uint64_t index, DdprunPart* part);
void ddprun_checkpoint_close(DdprunOpen* open);

}  // extern "C"
