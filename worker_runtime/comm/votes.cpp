#include "worker_runtime/comm/votes.hpp"

#include <cstdint>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

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

std::optional<int> first_zero_of(const torch::Tensor& rows) {
    const torch::Tensor zeros = (rows.flatten() == 0).nonzero();
    return zeros.numel() > 0 ? std::optional(zeros[0].item<int>()) : std::optional<int>();
}

Result<std::optional<int>> first_rank_against(ProcessGroup& group, bool is_right) {
    const Result<torch::Tensor> votes =
        group.all_gather(torch::full({1}, is_right ? 1 : 0, torch::kInt64));
    return votes ? Result<std::optional<int>>(first_zero_of(*votes)) : votes.error();
}

Result<void> agree_on(ProcessGroup& group, const Result<void>& own) {
    const Result<torch::Tensor> agreed = agree_with_numbers(group, own, {});
    return agreed ? Result<void>() : agreed.error();
}

Result<torch::Tensor> agree_with_numbers(ProcessGroup& group, const Result<void>& own,
                                         std::vector<std::int64_t> numbers) {
    numbers.push_back(own ? 1 : 0);
    const Result<torch::Tensor> all = group.all_gather(torch::tensor(numbers, torch::kInt64));
    if (!all) {
        return all.error();
    }
    const auto last = static_cast<std::int64_t>(numbers.size()) - 1;
    const std::optional<int> against = first_zero_of(all->select(1, last));
    if (!against) {
        return all->narrow(1, 0, last);
    }
    const Result<std::string> why =
        broadcast_text(group, own ? std::string() : own.error().what, *against);
    if (!why) {
        return why.error();
    }
    return Error{own ? ErrorCode::Refused : own.error().code,
                 fmt::format("rank {}: {}", *against, *why)};
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

}  // namespace ddprun::worker
