#include "worker_runtime/state/outcomes.hpp"

#include <cstdint>

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

std::string json_of(const std::vector<ManifestFile>& files) {
    nlohmann::json list = nlohmann::json::array();
    for (const ManifestFile& file : files) {
        list.push_back({file.name, file.size, file.xxh3_128});
    }
    return list.dump();
}

}  // namespace

Result<std::string> from_rank_0(ProcessGroup& group, const Result<std::string>& own) {
    const Result<std::string> text = broadcast_text(group, text_of(own));
    return text ? outcome_of(*text) : text;
}

Result<std::vector<ManifestFile>> gather_files(ProcessGroup& group,
                                               const Result<std::vector<ManifestFile>>& own) {
    const Result<std::string> sent = own ? Result<std::string>(json_of(*own)) : own.error();
    const Result<std::vector<std::string>> texts = gather_texts(group, text_of(sent));
    if (!texts) {
        return texts.error();
    }
    std::vector<ManifestFile> all;
    for (std::size_t rank = 0; rank < texts->size(); ++rank) {
        const Result<std::string> files = outcome_of((*texts)[rank]);
        if (!files) {
            return Error{files.error().code, fmt::format("rank {}: {}", rank, files.error().what)};
        }
        for (const nlohmann::json& file : nlohmann::json::parse(*files)) {
            all.push_back({.name = file[0].get<std::string>(),
                           .size = file[1].get<std::uint64_t>(),
                           .xxh3_128 = file[2].get<std::string>()});
        }
    }
    return all;
}

}  // namespace ddprun::worker
