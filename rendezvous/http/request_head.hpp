#pragma once

#include <optional>

#include <boost/beast/http/fields.hpp>
#include <boost/beast/http/message.hpp>

#include "base/result.hpp"
#include "rendezvous/http/http_access.hpp"
#include "rendezvous/http/http_request.hpp"
#include "rendezvous/http/order_request.hpp"

namespace ddprun::rdzv {

/// How a request has come. `is_on_this_machine` and `is_hidden`: as of HttpCaller. The first is
/// none on a Unix socket that is its user's: a request there may lack a Host.
struct HttpWay {
    std::optional<bool> is_on_this_machine;
    bool is_hidden = false;
};

/// Parses and judges the head of a request. The page's files, in which a
/// token is typed, are for every client if a token exists. Failure is admit()'s or
/// parse_watch_request()'s. Pure.
[[nodiscard]] Result<WatchRequest> judge(
    const boost::beast::http::request_header<boost::beast::http::fields>& head, const HttpWay& way,
    const HttpAccess& access);

/// The same of an order (is_order()), but for its body. Only on a port: a run's own socket takes
/// none. Failure is admit_operator()'s or parse_order_target()'s. Pure.
[[nodiscard]] Result<OperatorOrder> judge_order(
    const boost::beast::http::request_header<boost::beast::http::fields>& head, const HttpWay& way,
    const HttpAccess& access, const Limits& limits);

}  // namespace ddprun::rdzv
