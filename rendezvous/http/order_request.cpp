#include "rendezvous/http/order_request.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <boost/url/parse.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/printable.hpp"
#include "rendezvous/wire/control_fields.hpp"
#include "rendezvous/wire/json_text.hpp"

namespace ddprun::rdzv {

namespace {

using Json = nlohmann::json;

constexpr std::size_t kPathColumns = 80;

Error bad_body(const std::string& what) {
    return {ErrorCode::InvalidArgument,
            fmt::format("{}: an order is a JSON object with node, for_s, nodes and by, as far as "
                        "it needs them",
                        what)};
}

/// A name as the wire takes it: no control characters, not too long.
bool is_name(const std::string& text, const Limits& limits) {
    return text.size() <= limits.name_bytes_max &&
           std::none_of(text.begin(), text.end(),
                        [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

Result<std::string> read_name(const Json& object, const char* key, const Limits& limits) {
    const auto found = object.find(key);
    if (found == object.end() || found->is_null()) {
        return std::string();
    }
    const auto* const text = found->get_ptr<const Json::string_t*>();
    if (text == nullptr || !is_name(*text, limits)) {
        return bad_body(fmt::format("{} is no name", key));
    }
    return *text;
}

Result<std::int64_t> read_number(const Json& object, const char* key, std::int64_t most) {
    const auto found = object.find(key);
    if (found == object.end() || found->is_null()) {
        return std::int64_t{0};
    }
    const auto* const number = found->get_ptr<const Json::number_unsigned_t*>();
    if (number == nullptr || *number > static_cast<std::uint64_t>(most)) {
        return bad_body(fmt::format("{} is no number from 0 to {}", key, most));
    }
    return static_cast<std::int64_t>(*number);
}

}  // namespace

bool is_order(std::string_view method, std::string_view target) {
    return method == "POST" && target.starts_with("/jobs/");
}

Result<OperatorOrder> parse_order_target(std::string_view target, const Limits& limits) {
    const auto parsed = boost::urls::parse_origin_form({target.data(), target.size()});
    std::vector<std::string> segments;
    if (parsed) {
        for (const auto& segment : parsed->segments()) {
            segments.push_back(segment);
        }
    }
    if (segments.size() != 3 || segments[0] != "jobs" || !is_name(segments[1], limits) ||
        segments[1].empty()) {
        return Error{ErrorCode::NotFound, fmt::format("{}: orders are POST /jobs/JOB/ACTION",
                                                      printable(target, kPathColumns))};
    }
    const auto& names = kOperatorActionNames;
    const auto found = std::find_if(names.begin(), names.end(),
                                    [&](const auto& one) { return one.first == segments[2]; });
    if (found == names.end()) {
        return Error{ErrorCode::NotFound,
                     fmt::format("{}: there are drain, restart, hold, stop, grow, shrink, "
                                 "quarantine and release",
                                 printable(segments[2], kPathColumns))};
    }
    return OperatorOrder{.job = JobId(segments[1]), .action = found->second};
}

Result<OperatorOrder> parse_order_body(OperatorOrder order, std::string_view body,
                                       const Limits& limits) {
    const Json object = body.empty() ? Json::object() : parse_shallow_json(body);
    if (!object.is_object()) {
        return bad_body("this body");
    }
    const Result<std::string> node = read_name(object, "node", limits);
    const Result<std::string> by = read_name(object, "by", limits);
    const Result<std::int64_t> seconds =
        read_number(object, "for_s", limits.operator_for_max.count() / 1000 + 1);
    const Result<std::int64_t> nodes =
        read_number(object, "nodes", static_cast<std::int64_t>(limits.nodes_max));
    for (const Error* error :
         {node ? nullptr : &node.error(), by ? nullptr : &by.error(),
          seconds ? nullptr : &seconds.error(), nodes ? nullptr : &nodes.error()}) {
        if (error != nullptr) {
            return *error;
        }
    }
    order.node = *node;
    order.by = *by;
    order.duration = Milliseconds(*seconds * 1000);
    order.nodes = static_cast<int>(*nodes);
    return order;
}

std::string order_answer(const OperatorReply& reply) {
    nlohmann::ordered_json object;
    if (reply.fault == OrderFault::None) {
        object = {{"event", reply.event}, {"text", reply.text}};
    } else {
        object = {{"error", reply.text}};
    }
    return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace ddprun::rdzv
