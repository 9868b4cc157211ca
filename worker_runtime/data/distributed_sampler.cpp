#include "worker_runtime/data/distributed_sampler.hpp"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <charconv>
#include <system_error>

#include <fmt/format.h>
#include <torch/torch.h>

#include "base/check.hpp"

namespace ddprun {

namespace {

/// Samples per rank when `left` of them are shared by `world_size` ranks.
std::int64_t share_of(std::int64_t left, int world_size, bool drop_last) {
    return drop_last ? left / world_size : left / world_size + (left % world_size != 0 ? 1 : 0);
}

/// The order in which all ranks together walk through `epoch`.
torch::Tensor epoch_order(std::int64_t size, std::int64_t epoch,
                          const DistributedSamplerOptions& options) {
    if (!options.shuffle) {
        return torch::arange(size, torch::kInt64);
    }
    const auto generator = at::make_generator<at::CPUGeneratorImpl>(
        options.seed + static_cast<std::uint64_t>(epoch));  // wraps: any seed is fine
    return torch::randperm(size, generator, torch::kInt64);
}

}  // namespace

bool SampleOrder::operator==(const SampleOrder& other) const {
    return size == other.size && options.shuffle == other.options.shuffle &&
           options.drop_last == other.options.drop_last &&
           (!options.shuffle || options.seed == other.options.seed);
}

std::string SampleOrder::text() const {
    return fmt::format("{} samples, {}, drop_last {}", size,
                       options.shuffle ? fmt::format("shuffled with seed {}", options.seed)
                                       : std::string("not shuffled"),
                       options.drop_last);
}

std::string SamplerPosition::text() const {
    std::string place = fmt::format("{} {} {} {}", epoch, consumed, split_start, world_size);
    if (order.has_value()) {
        place += fmt::format(" {} {} {:d} {:d}", order->size, order->options.seed,
                             order->options.shuffle, order->options.drop_last);
    }
    return place;
}

Result<SamplerPosition> SamplerPosition::parse(std::string_view text) {
    SamplerPosition position;
    SampleOrder order;
    int shuffle = 0;
    int drop_last = 0;
    const std::string numbers = fmt::format(" {}", text);
    const char* at = numbers.data();
    const char* const end = at + numbers.size();
    const auto read = [&at, end](auto& number) {  // each behind one space
        const bool has_space = at != end && *at == ' ';
        const auto [next, error] = std::from_chars(at + (has_space ? 1 : 0), end, number);
        at = next;
        return has_space && error == std::errc{};
    };
    bool is_fine = read(position.epoch) && read(position.consumed) && read(position.split_start) &&
                   read(position.world_size);
    if (is_fine && at != end) {
        is_fine = read(order.size) && read(order.options.seed) && read(shuffle) &&
                  read(drop_last) && (shuffle | 1) == 1 && (drop_last | 1) == 1;
        order.options.shuffle = shuffle == 1;
        order.options.drop_last = drop_last == 1;
        position.order = order;
    }
    if (!is_fine || at != end || position.epoch < 0) {
        return Error{ErrorCode::InvalidArgument,
                     fmt::format("sampler position '{}' is not four numbers (epoch, consumed, "
                                 "split start, world size) or eight (with size, seed, shuffle, "
                                 "drop_last); resume from another checkpoint",
                                 text.substr(0, 160))};
    }
    return position;
}

DistributedSampler::DistributedSampler(std::int64_t size, int rank, int world_size,
                                       DistributedSamplerOptions options)
    : size_(size), rank_(rank), world_size_(world_size), options_(options) {
    DDP_CHECK(world_size >= 1 && rank >= 0 && rank < world_size, rank, world_size);
    DDP_CHECK(size > 0, size);
    set_epoch(0);
}

void DistributedSampler::start_split(std::int64_t epoch, std::int64_t split_start) {
    epoch_ = epoch;
    split_start_ = split_start;
    taken_ = 0;
    has_given_ = false;
    const std::int64_t left = size_ - split_start;
    const std::int64_t share = share_of(left, world_size_, options_.drop_last);
    if (share == 0) {
        mine_ = torch::empty({0}, torch::kInt64);
        return;
    }
    // Padding by repetition is counting on from the start.
    const torch::Tensor places =
        torch::arange(rank_, share * world_size_, world_size_, torch::kInt64).remainder(left);
    mine_ =
        epoch_order(size_, epoch, options_).narrow(0, split_start, left).index_select(0, places);
}

std::optional<torch::Tensor> DistributedSampler::next_batch(std::int64_t batch_size) {
    DDP_CHECK(batch_size > 0, batch_size);
    const std::int64_t count = std::min(batch_size, samples_left());
    if (count == 0) {
        return std::nullopt;
    }
    torch::Tensor batch = mine_.narrow(0, taken_, count);
    taken_ += count;
    has_given_ = true;
    return batch;
}

void DistributedSampler::reset(std::optional<std::size_t> new_size) {
    if (new_size.has_value() && static_cast<std::int64_t>(*new_size) != size_) {
        DDP_CHECK(*new_size > 0);
        size_ = static_cast<std::int64_t>(*new_size);
        set_epoch(has_given_ ? epoch_ + 1 : epoch_);
    } else if (has_given_) {
        set_epoch(epoch_ + 1);
    }
}

std::optional<std::vector<std::size_t>> DistributedSampler::next(std::size_t batch_size) {
    const std::optional<torch::Tensor> batch = next_batch(static_cast<std::int64_t>(batch_size));
    if (!batch) {
        return std::nullopt;
    }
    const auto* const first = batch->const_data_ptr<std::int64_t>();
    return std::vector<std::size_t>(first, first + batch->numel());
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
    archive.write("position", c10::IValue(position().text()));
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
    c10::IValue text;
    archive.read("position", text);
    const Result<SamplerPosition> position = SamplerPosition::parse(text.toStringRef());
    const Result<void> resumed = position ? resume(*position) : position.error();
    TORCH_CHECK(resumed.has_value(), resumed.error().what);
}

SamplerPosition DistributedSampler::position() const {
    return {.epoch = epoch_,
            .consumed = consumed(),
            .split_start = split_start_,
            .world_size = world_size_,
            .order = SampleOrder{.size = size_, .options = options_}};
}

Result<void> DistributedSampler::resume(const SamplerPosition& position) {
    const SampleOrder own{.size = size_, .options = options_};
    if (position.order.has_value() && *position.order != own) {
        return Error{ErrorCode::InvalidArgument,
                     fmt::format("cannot resume: the position is one in {}; this sampler has {}; "
                                 "resume with the data and options of that run, or start anew",
                                 position.order->text(), own.text())};
    }
    const bool has_split = position.epoch >= 0 && position.world_size >= 1 &&
                           position.split_start >= 0 && position.split_start <= size_ &&
                           position.consumed >= position.split_start;
    const std::int64_t share =
        has_split ? share_of(size_ - position.split_start, position.world_size, options_.drop_last)
                  : 0;
    const std::int64_t taken =
        has_split ? (position.consumed - position.split_start) / position.world_size : 0;
    if (!has_split || taken > share ||
        position.split_start + taken * position.world_size != position.consumed) {
        return Error{
            ErrorCode::InvalidArgument,
            fmt::format("cannot resume: {} samples consumed, shared by {} workers from "
                        "sample {} on, is no place in an epoch of {} samples; resume with "
                        "the data and options of that run, or start anew",
                        position.consumed, position.world_size, position.split_start, size_)};
    }
    if (position.world_size == world_size_) {
        start_split(position.epoch, position.split_start);
        taken_ = taken;
    } else if (taken == share) {
        start_split(position.epoch, size_);  // over: nothing is left to share, dropped or not
    } else {
        start_split(position.epoch, position.consumed);
    }
    return {};
}

}  // namespace ddprun
