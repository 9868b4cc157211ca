#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "worker_runtime/checkpoint/tensor_view.hpp"

/// The safetensors file format: eight bytes with the header's size (little-endian), a JSON header
/// that says each tensor's type, shape and place, then the tensors' bytes without holes. Pure
/// functions on memory; nothing is copied but the header.
namespace ddprun::worker {

/// The header's size may not be larger; the same bound as the reference implementation's.
constexpr std::size_t kSafetensorsHeaderBytesMax = 100'000'000;
/// Keys of texts about the file, beside "format": the prefix of its names, and, if a tensor of it
/// is a part, for every tensor of it `{"<name>":{"saved_offsets":[…],"global_shape":[…]},…}`, and
/// for a part whose layout names one its "mesh_dimension". PyTorch's HuggingFaceStorageReader reads
/// the offsets; without the shape a tensor whose last part is lost would look smaller instead of
/// torn.
constexpr const char* kPrefixKey = "ddprun_prefix";
constexpr const char* kShardingKey = "DCP_SHARDING_INFO";
/// Bytes of that text.
constexpr std::size_t kShardingBytesMax = 16UL << 20;
/// Dimensions of one tensor; LibTorch's own bound.
constexpr std::size_t kSafetensorsDimensionsMax = 64;

/// A file to be: `header` (with the size in front and the padding), then the bytes of `tensors` in
/// this order. Wide types come first, so that every tensor is aligned to its type. The same tensors
/// give the same file. Points to the tensors it was made from.
struct SafetensorsPlan {
    std::string header;
    std::vector<const TensorView*> tensors;
};

/// Names in the file lack `prefix`, with which all names of `tensors` begin; it ends with a dot,
/// and readers of ours put it back. Parts of tensors get what torch.distributed.checkpoint reads as
/// well. Refuses what no reader would take: an unknown type, a name that occurs twice, is no UTF-8
/// or is reserved, bytes that do not fit type and shape, a part that is not within its tensor, a
/// header over the bound.
[[nodiscard]] Result<SafetensorsPlan> plan_safetensors(const std::vector<TensorView>& tensors,
                                                       const std::string& prefix = {});

/// The bytes of the file, one piece behind the other. Points into `plan` and the tensors.
[[nodiscard]] std::vector<std::span<const std::byte>> pieces_of(const SafetensorsPlan& plan);

/// The tensors of a whole file, in the order of their bytes, which are part of `file`; names have
/// the file's prefix. Strict: anything but exactly the format is an error that names the tensor
/// and the values; at most the header's bounds are allocated for hostile bytes, and nothing is
/// thrown.
[[nodiscard]] Result<std::vector<TensorView>> parse_safetensors(std::span<const std::byte> file);

/// The bytes that `shape` of `dtype` takes; an error for unknown types, negative dimensions and
/// numbers that overflow.
[[nodiscard]] Result<std::uint64_t> tensor_bytes(const std::string& dtype,
                                                 const std::vector<std::int64_t>& shape);

}  // namespace ddprun::worker
