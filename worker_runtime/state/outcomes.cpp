#include "worker_runtime/state/outcomes.hpp"

#include <cstddef>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "worker_runtime/comm/texts.hpp"

namespace ddprun::worker {

namespace {

/// The outcome of a rank's work, as the ranks send it to each other.
std::string text_of(const Result<std::string>& outcome) {
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
Result<std::string> outcome_of(const std::string& text) {
    const nlohmann::json json = nlohmann::json::parse(text);
    if (json.contains("done")) {
        return json["done"].get<std::string>();
    }
    return Error{static_cast<ErrorCode>(json["code"].get<int>()), json["what"].get<std::string>()};
}

}  // namespace

Result<std::string> from_rank_0(ProcessGroup& group, const Result<std::string>& own) {
    const Result<std::string> text = broadcast_text(group, text_of(own));
    return text ? outcome_of(*text) : text;
}

Result<std::vector<std::string>> gather_outcomes(ProcessGroup& group,
                                                 const Result<std::string>& own) {
    const Result<std::vector<std::string>> texts = gather_texts(group, text_of(own));
    if (!texts) {
        return texts.error();
    }
    std::vector<std::string> all;
    for (std::size_t rank = 0; rank < texts->size(); ++rank) {
        Result<std::string> outcome = outcome_of((*texts)[rank]);
        if (!outcome) {
            return Error{outcome.error().code,
                         fmt::format("rank {}: {}", rank, outcome.error().what)};
        }
        all.push_back(*std::move(outcome));
    }
    return all;
}

}  // namespace ddprun::worker
