#include "worker_runtime/comm/votes.hpp"

#include <string>

#include <fmt/format.h>
#include <torch/types.h>

#include "worker_runtime/comm/texts.hpp"

namespace ddprun::worker {

Result<std::optional<int>> first_rank_against(ProcessGroup& group, bool is_right) {
    const Result<torch::Tensor> votes =
        group.all_gather(torch::full({1}, is_right ? 1 : 0, torch::kInt32));
    if (!votes) {
        return votes.error();
    }
    const torch::Tensor against = (votes->flatten() == 0).nonzero();
    return against.numel() > 0 ? std::optional(against[0].item<int>()) : std::optional<int>();
}

Result<void> agree_on(ProcessGroup& group, const Result<void>& own) {
    const Result<std::optional<int>> against = first_rank_against(group, own.has_value());
    if (!against) {
        return against.error();
    }
    if (!against->has_value()) {
        return {};
    }
    const Result<std::string> why =
        broadcast_text(group, own ? std::string() : own.error().what, **against);
    if (!why) {
        return why.error();
    }
    return Error{own ? ErrorCode::Refused : own.error().code,
                 fmt::format("rank {}: {}", **against, *why)};
}

}  // namespace ddprun::worker
