#include "worker_runtime/comm/votes.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/types.h>

#include "worker_runtime/comm/texts.hpp"

namespace ddprun::worker {

namespace {

/// A result, as the ranks send it to each other.
std::string wire_text(const Result<std::string>& outcome) {
    nlohmann::json text;
    if (outcome) {
        text["done"] = *outcome;
    } else {
        text["code"] = static_cast<int>(outcome.error().code);
        text["what"] = outcome.error().what;
    }
    // A path may be no UTF-8.
    return text.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// Its inverse, for a text of this program's own.
Result<std::string> result_of(const std::string& text) {
    const nlohmann::json json = nlohmann::json::parse(text);
    if (json.contains("done")) {
        return json["done"].get<std::string>();
    }
    return Error{static_cast<ErrorCode>(json["code"].get<int>()), json["what"].get<std::string>()};
}

}  // namespace

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

Result<std::string> from_rank_0(ProcessGroup& group, const Result<std::string>& own) {
    const Result<std::string> text = broadcast_text(group, wire_text(own));
    return text ? result_of(*text) : text;
}

Result<std::vector<std::string>> gather_results(ProcessGroup& group,
                                                const Result<std::string>& own) {
    const Result<std::vector<std::string>> texts = gather_texts(group, wire_text(own));
    if (!texts) {
        return texts.error();
    }
    std::vector<std::string> all;
    for (std::size_t rank = 0; rank < texts->size(); ++rank) {
        Result<std::string> result = result_of((*texts)[rank]);
        if (!result) {
            return Error{result.error().code,
                         fmt::format("rank {}: {}", rank, result.error().what)};
        }
        all.push_back(*std::move(result));
    }
    return all;
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
