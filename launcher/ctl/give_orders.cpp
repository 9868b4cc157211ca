#include "launcher/ctl/give_orders.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include <boost/url/encode.hpp>
#include <boost/url/rfc/pchars.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/limits.hpp"
#include "base/os/machine_identity.hpp"
#include "base/os/own_variable.hpp"
#include "base/printable.hpp"
#include "base/whole_number.hpp"
#include "launcher/ctl/local_runs.hpp"
#include "rendezvous/client/control_client.hpp"
#include "rendezvous/http/order_request.hpp"
#include "rendezvous/wire/control_fields.hpp"

namespace ddprun::launcher {

std::optional<Milliseconds> parse_time(const std::string& text) {
    constexpr std::int64_t kSecondsMax = std::int64_t{1} << 32;
    std::int64_t unit = 1;
    std::string digits = text;
    if (!digits.empty() && std::string("smh").find(digits.back()) != std::string::npos) {
        unit = digits.back() == 'h' ? 3600 : digits.back() == 'm' ? 60 : 1;
        digits.pop_back();
    }
    const std::optional<std::int64_t> number = whole_number<std::int64_t>(digits);
    if (!number || *number < 0 || *number > kSecondsMax) {
        return std::nullopt;
    }
    return Milliseconds(*number * unit * 1000);
}

std::string who_asks() {
    constexpr std::size_t kColumns = 64;  // of each; together they fit into a name
    std::string user = own_variable("LOGNAME");
    if (user.empty()) {
        user = own_variable("USER");
    }
    if (user.empty()) {
        user = fmt::format("uid {}", ::geteuid());
    }
    return printable(user, kColumns) + "@" + printable(host_name(), kColumns);
}

Result<rdzv::OperatorReply> give_to_rendezvous(const RendezvousAsked& asked,
                                               const rdzv::JobSecret& secret,
                                               const rdzv::OperatorOrder& order) {
    std::optional<rdzv::OperatorReply> unknown;
    std::optional<Error> failure;
    for (const rdzv::Endpoint& endpoint : asked.endpoints) {
        Result<rdzv::OperatorReply> reply = rdzv::give_order({.endpoint = endpoint,
                                                              .secret = secret,
                                                              .tls = asked.tls,
                                                              .job = order.job,
                                                              .limits = Limits()},
                                                             order);
        if (reply && reply->fault != rdzv::OrderFault::Unknown) {
            return reply;
        }
        if (reply) {
            unknown = *std::move(reply);
        } else if (!failure) {
            failure = reply.error();
        }
    }
    if (unknown) {
        return *std::move(unknown);
    }
    return *std::move(failure);
}

Result<rdzv::OperatorReply> give_to_run(const std::string& folder,
                                        const rdzv::OperatorOrder& order) {
    const nlohmann::json asked = {{"node", order.node},
                                  {"for_s", order.duration.count() / 1000},
                                  {"nodes", order.nodes},
                                  {"by", order.by}};
    const std::string target =
        fmt::format("/jobs/{}/{}", boost::urls::encode(order.job.value(), boost::urls::pchars),
                    rdzv::word_of(order.action, rdzv::kOperatorActionNames));
    const Result<HttpAnswer> answer = post_to_run(
        folder, target, asked.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    if (!answer) {
        return answer.error();
    }
    const nlohmann::json said = nlohmann::json::parse(answer->body, nullptr, false);
    const auto status = std::find_if(rdzv::kOrderStatuses.begin(), rdzv::kOrderStatuses.end(),
                                     [&](const auto& one) { return one.second == answer->status; });
    const bool is_known = status != rdzv::kOrderStatuses.end();
    const bool is_taken = is_known && status->first == rdzv::OrderFault::None;
    const char* const words = is_taken ? "text" : "error";
    if (!said.is_object() || !said.contains(words) || !said.at(words).is_string()) {
        return Error{ErrorCode::BadMessage,
                     fmt::format("its ddprun has answered {}, and not what became of the order",
                                 answer->status)};
    }
    rdzv::OperatorReply reply{.text = said.at(words).get<std::string>()};
    if (!is_known) {
        return Error{ErrorCode::Refused, reply.text};
    }
    reply.fault = status->first;
    reply.event = is_taken ? said.value("event", std::uint64_t{0}) : 0;
    return reply;
}

}  // namespace ddprun::launcher
