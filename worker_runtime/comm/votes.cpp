#include "worker_runtime/comm/votes.hpp"

#include <cstdint>
#include <functional>
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

Result<bool> are_alike(ProcessGroup& group, const std::string& text) {
    const auto hash = static_cast<std::int64_t>(std::hash<std::string>()(text));
    const Result<torch::Tensor> all =
        group.all_gather(torch::tensor({hash, static_cast<std::int64_t>(text.size())}));
    if (!all) {
        return all.error();
    }
    return ((*all) == (*all)[0]).all().item<bool>();
}

}  // namespace ddprun::worker
