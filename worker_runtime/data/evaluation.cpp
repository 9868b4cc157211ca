#include "worker_runtime/data/evaluation.hpp"

#include <algorithm>
#include <exception>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/torch.h>

#include "base/check.hpp"
#include "worker_runtime/comm/exception_text.hpp"

namespace ddprun {

namespace {

std::int64_t divided_up(std::int64_t value, std::int64_t divisor) {
    return value / divisor + (value % divisor != 0 ? 1 : 0);
}

/// The sums over this rank's share; throws what the judge throws.
torch::Tensor judge_share(const ProcessGroup& group, std::int64_t size, std::int64_t batch_size,
                          const Judge& judge) {
    const torch::NoGradGuard no_grad;
    torch::Tensor sums;
    const std::int64_t batches = worker::evaluation_batches(size, group.world_size(), batch_size);
    for (std::int64_t number = 0; number < batches; ++number) {
        const worker::EvaluationBatch batch =
            worker::evaluation_batch(size, group.rank(), group.world_size(), batch_size, number);
        const torch::Tensor values = judge(batch.indices);
        TORCH_CHECK(values.dim() == 2 && values.size(0) == batch.indices.size(0),
                    "the judge was given ", batch.indices.size(0),
                    " samples and returned a tensor of shape ", values.sizes(),
                    "; it must return one row per sample");
        TORCH_CHECK(!sums.defined() || sums.size(0) == values.size(1), "the judge returned ",
                    values.size(1), " values per sample, but ", sums.size(0), " before");
        const torch::Tensor part =
            values.narrow(0, 0, batch.counted).to(group.device(), torch::kFloat64).sum(0);
        sums = sums.defined() ? sums + part : part;
    }
    return sums;
}

}  // namespace

Result<torch::Tensor> evaluate(ProcessGroup& group, std::int64_t size, std::int64_t batch_size,
                               const Judge& judge) {
    if (size < 1 || batch_size < 1) {
        return Error{ErrorCode::InvalidArgument,
                     fmt::format("cannot evaluate {} samples in batches of {}: both must be at "
                                 "least 1",
                                 size, batch_size)};
    }
    torch::Tensor sums;
    try {
        sums = judge_share(group, size, batch_size, judge);
    } catch (const std::exception& failure) {
        // It may have thrown because a collective of its own has broken the group.
        if (const Result<void> whole = group.check("evaluation"); !whole) {
            return whole.error();
        }
        return Error{ErrorCode::InvalidArgument,
                     fmt::format("evaluation: the judge failed on rank {} of {}: {}", group.rank(),
                                 group.world_size(), worker::first_line(failure))};
    }
    if (const Result<void> summed = group.all_reduce(sums); !summed) {
        return summed.error();
    }
    const torch::Tensor read = sums.cpu();
    if (const Result<void> whole = group.check("evaluation"); !whole) {
        return whole.error();
    }
    return read;
}

namespace worker {

std::int64_t evaluation_batches(std::int64_t size, int world_size, std::int64_t batch_size) {
    DDP_CHECK(size > 0 && world_size > 0 && batch_size > 0, size, world_size, batch_size);
    return divided_up(divided_up(size, world_size), batch_size);
}

EvaluationBatch evaluation_batch(std::int64_t size, int rank, int world_size,
                                 std::int64_t batch_size, std::int64_t number) {
    DDP_CHECK(rank >= 0 && rank < world_size, rank, world_size);
    DDP_CHECK(number >= 0 && number < evaluation_batches(size, world_size, batch_size), number);
    // The share of a rank is rank, rank + world_size, …: whatever reaches beyond the end is padding
    // and stands last.
    const std::int64_t begin = number * batch_size;
    const std::int64_t end = std::min(begin + batch_size, divided_up(size, world_size));
    const std::int64_t first = rank + begin * world_size;
    const torch::Tensor places =
        torch::arange(first, rank + end * world_size, world_size, torch::kInt64);
    const std::int64_t countable = first < size ? divided_up(size - first, world_size) : 0;
    return {.indices = places.remainder(size), .counted = std::min(countable, end - begin)};
}

}  // namespace worker

}  // namespace ddprun
