#include "worker_runtime/checkpoint/json_text.hpp"

#include <cstddef>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace ddprun::worker {

namespace {

using Json = nlohmann::json;

constexpr std::size_t kQuotedBytesMax = 100;

}  // namespace

std::string in_quotes(std::string_view text) {
    const bool is_cut = text.size() > kQuotedBytesMax;
    const Json value(std::string(text.substr(0, kQuotedBytesMax)));
    return value.dump(-1, ' ', true, Json::error_handler_t::replace) + (is_cut ? "…" : "");
}

Result<Json> parse_json(std::string_view text, int depth_max) {
    // nlohmann takes a NUL byte for the end and skips a byte order mark.
    if (const std::size_t at = text.find('\0'); at != std::string_view::npos) {
        return Error{ErrorCode::BadMessage, fmt::format("byte {} is NUL", at)};
    }
    if (text.empty() || text.front() != '{') {
        return Error{ErrorCode::BadMessage, "it does not begin with {"};
    }
    std::string problem;
    std::vector<std::set<std::string>> keys;  // of the open objects, by depth
    const Json::parser_callback_t callback = [&](int depth, Json::parse_event_t event,
                                                 Json& parsed) {
        if (depth > depth_max) {
            problem = fmt::format("it is nested deeper than {}", depth_max);
        }
        if (!problem.empty()) {
            return false;
        }
        if (event == Json::parse_event_t::object_start) {
            keys.resize(static_cast<std::size_t>(depth) + 2);
            keys[static_cast<std::size_t>(depth) + 1].clear();
        } else if (event == Json::parse_event_t::key) {
            const std::string& key = parsed.get_ref<const std::string&>();
            if (!keys[static_cast<std::size_t>(depth)].insert(key).second) {
                problem = fmt::format("key {} occurs twice", in_quotes(key));
            }
        }
        return true;
    };
    Json value = Json::parse(text, callback, false);
    if (!problem.empty()) {
        return Error{ErrorCode::BadMessage, std::move(problem)};
    }
    if (value.is_discarded()) {
        return Error{ErrorCode::BadMessage, "it is not JSON"};
    }
    return value;
}

}  // namespace ddprun::worker
