#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"

/// Parts of tensors: which elements of a whole tensor a rank holds, or a file. Pure functions.
namespace ddprun::worker {

/// The elements of a tensor with offsets[d] <= index[d] < offsets[d] + lengths[d] in every
/// dimension d.
struct Box {
    std::vector<std::int64_t> offsets;
    std::vector<std::int64_t> lengths;

    friend bool operator==(const Box&, const Box&) = default;
};

/// The place of a part in its whole tensor. The lengths of the part are its own shape.
struct Layout {
    std::vector<std::int64_t> global_shape;
    std::vector<std::int64_t> offsets;
    /// The name of the mesh dimension along which the whole is sharded; empty: not told. It is for
    /// people: parts are loaded by their offsets, into any mesh.
    std::string mesh_dimension = {};
};

/// " sharded along `shard`", behind a type and shape; empty for an empty name.
[[nodiscard]] std::string sharded_text(const std::string& mesh_dimension);

/// All elements of a tensor of this shape.
[[nodiscard]] Box whole_box(const std::vector<std::int64_t>& shape);

/// The elements that both have; nothing if they have none in common. Both are of one tensor.
[[nodiscard]] std::optional<Box> overlap(const Box& left, const Box& right);

/// Fails unless a part of shape `lengths` lies within the whole as `layout` says.
[[nodiscard]] Result<void> check_layout(const Layout& layout,
                                        const std::vector<std::int64_t>& lengths);

/// Fails unless each element of a tensor of `shape` is in exactly one of `boxes`, which lie within
/// it. The error names the first element that is in none or in several.
[[nodiscard]] Result<void> check_cover(const std::vector<std::int64_t>& shape,
                                       const std::vector<Box>& boxes);

/// The part of a tensor that a rank has; a whole tensor is a part, too.
struct RankPart {
    int rank = 0;
    std::string dtype;
    std::vector<std::int64_t> global_shape;
    Box box;
    std::string mesh_dimension = {};  ///< of its Layout
};

/// Fails unless `parts`, at least one, are of one type, shape and mesh dimension and pass
/// check_cover(). The error names the tensor `name` and the ranks.
[[nodiscard]] Result<void> check_parts(const std::string& name, const std::vector<RankPart>& parts);

/// The most pieces that check_cover() accepts. The edges of the boxes cut the tensor into pieces,
/// and time and memory grow with their number.
constexpr std::size_t kCoverPiecesMax = std::size_t{1} << 22;

/// Shares `sizes`, bytes of tensors that every rank has, out among ranks: the rank that writes each
/// one. Large tensors go first, each to the rank with the fewest bytes so far. The number of
/// writers is the sum of the sizes divided by `kShareBytesMin`, at least 1 and at most the world
/// size. The same sizes give the same ranks.
[[nodiscard]] std::vector<int> share_out(const std::vector<std::uint64_t>& sizes, int world_size);

/// Bytes for which another writer, with a file of its own, is worth while.
constexpr std::uint64_t kShareBytesMin = 16U << 20;

}  // namespace ddprun::worker
