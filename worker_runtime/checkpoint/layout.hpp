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
};

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

/// Boxes of one tensor that check_cover() compares, at most; it takes time and memory for the
/// pieces that their edges cut the tensor into.
constexpr std::size_t kCoverPiecesMax = std::size_t{1} << 22;

/// Shares `sizes`, bytes of tensors that every rank has, out among ranks: the rank that writes each
/// one. Large tensors go first, each to the rank with the fewest bytes so far. Only as many ranks
/// write as have `kShareBytesMin` bytes each. The same sizes give the same ranks.
[[nodiscard]] std::vector<int> share_out(const std::vector<std::uint64_t>& sizes, int world_size);

/// Fewer bytes are not worth a file of their own.
constexpr std::uint64_t kShareBytesMin = 16U << 20;

}  // namespace ddprun::worker
