#pragma once

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "base/limits.hpp"
#include "base/result.hpp"
#include "rendezvous/wire/control.hpp"

namespace ddprun::rdzv {

/// The outcomes of an order with their HTTP statuses.
inline constexpr std::array<std::pair<OrderFault, unsigned>, 4> kOrderStatuses = {
    {{OrderFault::None, 202},
     {OrderFault::Invalid, 400},
     {OrderFault::Unknown, 404},
     {OrderFault::Conflict, 409}}};

/// `POST /jobs/JOB/ACTION` with a JSON object: what an operator asks for over HTTP. Its fields, all
/// of which may be missing: `node`, `for_s`, `nodes`, `by` (docs/events.md).
[[nodiscard]] bool is_order(std::string_view method, std::string_view target);

/// The job and the action. NotFound: there is no such path or action.
[[nodiscard]] Result<OperatorOrder> parse_order_target(std::string_view target,
                                                       const Limits& limits);

/// The same with what the body asks for. Failure is InvalidArgument and names the field.
[[nodiscard]] Result<OperatorOrder> parse_order_body(OperatorOrder order, std::string_view body,
                                                     const Limits& limits);

/// One line of JSON: "event" and "text", or "error".
[[nodiscard]] std::string order_answer(const OperatorReply& reply);

}  // namespace ddprun::rdzv
