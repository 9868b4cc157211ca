#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <torch/data/samplers/base.h>
#include <torch/types.h>

#include "base/result.hpp"

namespace ddprun {

struct DistributedSamplerOptions {
    bool shuffle = true;
    std::uint64_t seed = 0;  ///< the same on every rank; the order of an epoch is of seed + epoch
    bool drop_last =
        false;  ///< leave the rest out that does not fill every rank, instead of padding
};

/// The origin of an epoch's order of samples: a position means something in the same order only.
struct SampleOrder {
    std::int64_t size = 0;
    DistributedSamplerOptions options;

    /// Seeds that differ make no difference where nothing is shuffled.
    bool operator==(const SampleOrder& other) const;
    /// For people.
    [[nodiscard]] std::string text() const;
};

/// The position of a training in its epochs: a small value for checkpoints, the same on every rank.
struct SamplerPosition {
    std::int64_t epoch = 0;
    /// Places of the epoch's order that all ranks together have taken, padding included.
    std::int64_t consumed = 0;
    /// The place from which the workers of `world_size` share the epoch: 0, or where another number
    /// of them stopped.
    std::int64_t split_start = 0;
    int world_size = 1;
    /// Absent from a position that an earlier version wrote down.
    std::optional<SampleOrder> order;

    bool operator==(const SamplerPosition&) const = default;

    /// Four numbers, in the order above; then size, seed, shuffle and drop_last, the last two as 0
    /// or 1, if they are told.
    [[nodiscard]] std::string text() const;
    [[nodiscard]] static Result<SamplerPosition> parse(std::string_view text);
};

/// Splits the samples [0, size) among the ranks, in another order every epoch: index for index what
/// PyTorch's torch.utils.data.DistributedSampler gives. All ranks get equally many: the epoch's
/// order is padded by its own first samples, or cut when `drop_last`. One thread at a time.
///
/// It is a sampler for torch::data::DataLoader, too. That one takes a copy of it, which runs ahead
/// of the training by what is prefetched: ddprun::DataLoader is the one to resume in mid-epoch.
class DistributedSampler : public torch::data::samplers::Sampler<> {
public:
    /// At the first sample of epoch 0. Requires 0 <= rank < world_size and size > 0.
    DistributedSampler(std::int64_t size, int rank, int world_size,
                       DistributedSamplerOptions options = {});

    /// Starts `epoch` at its first sample, whatever was taken before.
    void set_epoch(std::int64_t epoch) { start_split(epoch, 0); }

    /// This rank's next samples: int64 [n], n = batch_size or, at the end of the epoch, less; the
    /// same n on every rank. Returns none when the epoch is over. Requires batch_size > 0.
    [[nodiscard]] std::optional<torch::Tensor> next_batch(std::int64_t batch_size);

    /// As torch::data::DataLoader calls them, at the start of each pass over the data and for each
    /// batch. A pass goes on where set_epoch() or resume() has put the sampler; if samples were
    /// given since, it is the next epoch. `new_size`: that of the data set from now on.
    void reset(std::optional<std::size_t> new_size = std::nullopt) override;
    std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;
    /// The position; load() throws where resume() fails.
    void save(torch::serialize::OutputArchive& archive) const override;
    void load(torch::serialize::InputArchive& archive) override;

    [[nodiscard]] std::int64_t epoch() const { return epoch_; }
    /// Places of the epoch's order that all ranks together have taken, if all have taken as many
    /// batches as this one.
    [[nodiscard]] std::int64_t consumed() const { return split_start_ + taken_ * world_size_; }
    [[nodiscard]] SamplerPosition position() const;

    /// Goes on at a position(): with as many workers as there, exactly as if never interrupted;
    /// with another number, what is left of the epoch is shared anew, so that no sample of the
    /// consumed part comes again and each of the others comes at least once (unless `drop_last`).
    /// An epoch that was over stays over. Refused, changing nothing, when size, seed or options are
    /// not those of the position, and when no run over `size` samples can stand there.
    [[nodiscard]] Result<void> resume(const SamplerPosition& position);

    /// How many samples this rank gets from the whole epoch or, after resume() with another number
    /// of workers, from what was left of it.
    [[nodiscard]] std::int64_t samples_per_rank() const { return mine_.size(0); }
    /// Those of them that are still to come.
    [[nodiscard]] std::int64_t samples_left() const { return samples_per_rank() - taken_; }

private:
    void start_split(std::int64_t epoch, std::int64_t split_start);

    std::int64_t size_;
    int rank_;
    int world_size_;
    DistributedSamplerOptions options_;

    std::int64_t epoch_ = 0;
    std::int64_t split_start_ = 0;
    torch::Tensor mine_;  ///< this rank's samples from split_start_ on
    std::int64_t taken_ = 0;
    bool has_given_ = false;  ///< since it was put where it began
};

}  // namespace ddprun
