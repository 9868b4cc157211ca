#include "rendezvous/wire/json_text.hpp"

#include <nlohmann/json.hpp>

#include "base/limits.hpp"

namespace ddprun::rdzv {

nlohmann::json parse_shallow_json(std::string_view text) {
    using nlohmann::json;
    constexpr int kDepthMax = static_cast<int>(Limits{}.json_depth_max);
    const json::parser_callback_t is_kept = [](int depth, json::parse_event_t /*event*/,
                                               json& /*parsed*/) { return depth <= kDepthMax; };
    return json::parse(text, is_kept, false);
}

std::string text_in(const nlohmann::json& object, const char* key) {
    const auto found = object.find(key);
    return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace ddprun::rdzv
