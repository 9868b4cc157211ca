#include "worker_runtime/checkpoint/layout.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <queue>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/printable.hpp"
#include "worker_runtime/checkpoint/json_text.hpp"

namespace ddprun::worker {

namespace {

constexpr std::size_t kDimensionColumnsMax = 80;  // of a name, in an error

Error bad_layout(std::string what) {
    return Error{ErrorCode::BadMessage, std::move(what)};
}

std::string text_of(const std::vector<std::int64_t>& numbers) {
    return fmt::format("[{}]", fmt::join(numbers, ","));
}

/// The pieces that the edges of all boxes cut a tensor into, and how many boxes have each.
class Grid {
public:
    Grid(const std::vector<std::int64_t>& shape, const std::vector<Box>& boxes) {
        for (std::size_t d = 0; d < shape.size(); ++d) {
            std::vector<std::int64_t>& edges = edges_.emplace_back();
            edges = {0, shape[d]};
            for (const Box& box : boxes) {
                edges.push_back(box.offsets[d]);
                edges.push_back(box.offsets[d] + box.lengths[d]);
            }
            std::sort(edges.begin(), edges.end());
            edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
        }
    }

    /// Nothing: they are more than kCoverPiecesMax.
    [[nodiscard]] std::optional<std::size_t> pieces() const {
        std::size_t pieces = 1;
        for (const std::vector<std::int64_t>& edges : edges_) {
            pieces *= edges.size() - 1;
            if (pieces > kCoverPiecesMax) {
                return std::nullopt;
            }
        }
        return pieces;
    }

    /// Calls visit(number of the piece) for the pieces of `box` until it returns false.
    template <typename Visit>
    bool visit_pieces(const Box& box, const Visit& visit, std::size_t d = 0,
                      std::size_t before = 0) const {
        if (d == edges_.size()) {
            return visit(before);
        }
        const std::vector<std::int64_t>& edges = edges_[d];
        const std::int64_t end = box.offsets[d] + box.lengths[d];
        auto edge = std::lower_bound(edges.begin(), edges.end(), box.offsets[d]);
        for (; edge != edges.end() && *edge < end; ++edge) {
            const auto at = static_cast<std::size_t>(edge - edges.begin());
            if (!visit_pieces(box, visit, d + 1, before * (edges.size() - 1) + at)) {
                return false;
            }
        }
        return true;
    }

    /// The first element of a piece.
    [[nodiscard]] std::vector<std::int64_t> corner(std::size_t piece) const {
        std::vector<std::int64_t> corner(edges_.size());
        for (std::size_t d = edges_.size(); d-- > 0;) {
            corner[d] = edges_[d][piece % (edges_[d].size() - 1)];
            piece /= edges_[d].size() - 1;
        }
        return corner;
    }

private:
    std::vector<std::vector<std::int64_t>> edges_;  // by dimension, ascending
};

bool is_empty(const std::vector<std::int64_t>& shape) {
    return std::find(shape.begin(), shape.end(), 0) != shape.end();
}

/// An element that is not in exactly one box.
struct CoverFlaw {
    std::vector<std::int64_t> index;
    bool is_hole = false;
};

/// The first element that is in several boxes or in none; fails if a box is not within `shape`.
Result<std::optional<CoverFlaw>> find_flaw(const std::vector<std::int64_t>& shape,
                                           const std::vector<Box>& boxes) {
    for (const Box& box : boxes) {
        const Result<void> within =
            check_layout({.global_shape = shape, .offsets = box.offsets}, box.lengths);
        if (!within) {
            return within.error();
        }
    }
    if (is_empty(shape)) {
        return std::optional<CoverFlaw>();
    }
    // An empty box covers nothing, and its edges would cut the tensor.
    std::vector<Box> filled;
    std::copy_if(boxes.begin(), boxes.end(), std::back_inserter(filled),
                 [](const Box& box) { return !is_empty(box.lengths); });
    const Grid grid(shape, filled);
    const std::optional<std::size_t> pieces = grid.pieces();
    if (!pieces) {
        return bad_layout(fmt::format("{} parts cut a tensor of shape {} into more than {} pieces",
                                      boxes.size(), text_of(shape), kCoverPiecesMax));
    }
    std::vector<bool> is_covered(*pieces, false);
    for (const Box& box : filled) {
        std::size_t at = 0;
        const bool is_alone = grid.visit_pieces(box, [&](std::size_t piece) {
            at = piece;
            const bool is_first = !is_covered[piece];
            is_covered[piece] = true;
            return is_first;
        });
        if (!is_alone) {
            return std::optional(CoverFlaw{.index = grid.corner(at)});
        }
    }
    const auto hole = std::find(is_covered.begin(), is_covered.end(), false);
    if (hole == is_covered.end()) {
        return std::optional<CoverFlaw>();
    }
    const auto at = static_cast<std::size_t>(hole - is_covered.begin());
    return std::optional(CoverFlaw{.index = grid.corner(at), .is_hole = true});
}

std::string flaw_text(const std::vector<std::int64_t>& shape, const CoverFlaw& flaw) {
    return fmt::format("the element at {} of a tensor of shape {} is in {} of its parts",
                       text_of(flaw.index), text_of(shape), flaw.is_hole ? "none" : "several");
}

/// The first parts; all of the others are counted.
std::string list_of(const std::vector<RankPart>& parts) {
    constexpr std::size_t kListedMax = 8;
    std::vector<std::string> texts;
    for (std::size_t i = 0; i < std::min(parts.size(), kListedMax); ++i) {
        texts.push_back(fmt::format("rank {} has {} at {}", parts[i].rank,
                                    text_of(parts[i].box.lengths), text_of(parts[i].box.offsets)));
    }
    if (parts.size() > kListedMax) {
        texts.push_back(fmt::format("{} more ranks have one", parts.size() - kListedMax));
    }
    return fmt::format("{}", fmt::join(texts, ", "));
}

}  // namespace

std::string sharded_text(const std::string& mesh_dimension) {
    return mesh_dimension.empty() ? std::string()
                                  : fmt::format(" sharded along `{}`",
                                                printable(mesh_dimension, kDimensionColumnsMax));
}

Box whole_box(const std::vector<std::int64_t>& shape) {
    return {.offsets = std::vector<std::int64_t>(shape.size(), 0), .lengths = shape};
}

std::optional<Box> overlap(const Box& left, const Box& right) {
    Box both;
    for (std::size_t d = 0; d < left.offsets.size(); ++d) {
        const std::int64_t begin = std::max(left.offsets[d], right.offsets[d]);
        const std::int64_t end =
            std::min(left.offsets[d] + left.lengths[d], right.offsets[d] + right.lengths[d]);
        if (end <= begin) {
            return std::nullopt;
        }
        both.offsets.push_back(begin);
        both.lengths.push_back(end - begin);
    }
    return both;
}

Result<void> check_layout(const Layout& layout, const std::vector<std::int64_t>& lengths) {
    const std::size_t dimensions = layout.global_shape.size();
    bool is_within = layout.offsets.size() == dimensions && lengths.size() == dimensions;
    for (std::size_t d = 0; is_within && d < dimensions; ++d) {
        const std::int64_t whole = layout.global_shape[d];
        is_within = layout.offsets[d] >= 0 && lengths[d] >= 0 && lengths[d] <= whole &&
                    layout.offsets[d] <= whole - lengths[d];
    }
    if (!is_within) {
        return bad_layout(fmt::format("a part of shape {} at {} is not within the shape {}",
                                      text_of(lengths), text_of(layout.offsets),
                                      text_of(layout.global_shape)));
    }
    return {};
}

Result<void> check_cover(const std::vector<std::int64_t>& shape, const std::vector<Box>& boxes) {
    const Result<std::optional<CoverFlaw>> flaw = find_flaw(shape, boxes);
    if (!flaw) {
        return flaw.error();
    }
    return flaw->has_value() ? Result<void>(bad_layout(flaw_text(shape, **flaw))) : Result<void>();
}

Result<void> check_parts(const std::string& name, const std::vector<RankPart>& parts) {
    const auto bad = [&](const std::string& what) {
        return bad_layout(fmt::format("tensor {}{}", in_quotes(name), what));
    };
    const RankPart& first = parts.front();
    std::vector<Box> boxes;
    for (const RankPart& part : parts) {
        if (part.dtype != first.dtype || part.global_shape != first.global_shape ||
            part.mesh_dimension != first.mesh_dimension) {
            return bad(fmt::format(" is {} {}{} on rank {} and {} {}{} on rank {}", first.dtype,
                                   text_of(first.global_shape), sharded_text(first.mesh_dimension),
                                   first.rank, part.dtype, text_of(part.global_shape),
                                   sharded_text(part.mesh_dimension), part.rank));
        }
        boxes.push_back(part.box);
    }
    const Result<std::optional<CoverFlaw>> flaw = find_flaw(first.global_shape, boxes);
    if (!flaw) {
        return bad(": " + flaw.error().what);
    }
    if (!flaw->has_value()) {
        return {};
    }
    const Box element{.offsets = (*flaw)->index,
                      .lengths = std::vector<std::int64_t>((*flaw)->index.size(), 1)};
    std::vector<RankPart> guilty;
    std::copy_if(parts.begin(), parts.end(), std::back_inserter(guilty), [&](const RankPart& part) {
        return (*flaw)->is_hole ? !is_empty(part.box.lengths)
                                : overlap(part.box, element).has_value();
    });
    return bad(fmt::format(": {}: {}", flaw_text(first.global_shape, **flaw), list_of(guilty)));
}

std::vector<int> share_out(const std::vector<std::uint64_t>& sizes, int world_size) {
    const std::uint64_t all = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
    const auto writers = static_cast<int>(
        std::clamp<std::uint64_t>(all / kShareBytesMin, 1, static_cast<std::uint64_t>(world_size)));
    std::vector<std::size_t> largest_first(sizes.size());
    std::iota(largest_first.begin(), largest_first.end(), std::size_t{0});
    std::stable_sort(
        largest_first.begin(), largest_first.end(),
        [&](std::size_t left, std::size_t right) { return sizes[left] > sizes[right]; });

    using Share = std::pair<std::uint64_t, int>;  // bytes so far, rank
    std::priority_queue<Share, std::vector<Share>, std::greater<>> shares;
    for (int rank = 0; rank < writers; ++rank) {
        shares.emplace(0, rank);
    }
    std::vector<int> ranks(sizes.size(), 0);
    for (const std::size_t tensor : largest_first) {
        const auto [bytes, rank] = shares.top();
        shares.pop();
        ranks[tensor] = rank;
        shares.emplace(bytes + sizes[tensor], rank);
    }
    return ranks;
}

}  // namespace ddprun::worker
