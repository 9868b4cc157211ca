#include "rendezvous/http/request_head.hpp"

#include <string_view>

namespace ddprun::rdzv {

namespace {

namespace http = boost::beast::http;

std::string_view text_of(boost::beast::string_view view) {
    return {view.data(), view.size()};
}

HttpCaller caller_of(const http::request_header<http::fields>& head, const HttpWay& way) {
    return {.is_on_this_machine = way.is_on_this_machine.value_or(true),
            .is_hidden = way.is_hidden,
            .host = text_of(head[http::field::host]),
            .origin = text_of(head[http::field::origin]),
            .authorization = text_of(head[http::field::authorization]),
            .content_type = text_of(head[http::field::content_type]),
            .fetch_site = text_of(head["Sec-Fetch-Site"])};
}

}  // namespace

Result<WatchRequest> judge(const http::request_header<http::fields>& head, const HttpWay& way,
                           const HttpAccess& access) {
    HttpCaller caller = caller_of(head, way);
    if (const Result<void> checked = check_way(access, caller); !checked) {
        return checked.error();
    }
    const Result<WatchRequest> request =
        parse_watch_request(text_of(head.method_string()), text_of(head.target()),
                            text_of(head[http::field::accept]), text_of(head["Last-Event-ID"]));
    const bool is_for_page = request && request->what == WatchRequest::What::Page;
    // A browser shows no token for a page: it is typed into the page, which has nothing of any job.
    const bool is_where_token_is_typed = is_for_page && (access.token || access.operator_secret);
    // On the Unix socket of a run a browser is behind some forwarding program, and names a host.
    const bool is_no_browser =
        !way.is_on_this_machine && head.find(http::field::host) == head.end();
    if (is_where_token_is_typed || is_no_browser) {
        return request;
    }
    if (is_for_page) {
        caller.fetch_site = {};  // Links from other sites lead here, and it has nothing of any job.
    }
    if (const Result<void> admitted = admit(access, caller); !admitted) {
        return admitted.error();
    }
    if (request && request->what == WatchRequest::What::Workers) {
        if (const Result<void> admitted = admit_reader(caller); !admitted) {
            return admitted.error();
        }
    }
    return request;
}

Result<OperatorOrder> judge_order(const http::request_header<http::fields>& head,
                                  const HttpWay& way, const HttpAccess& access,
                                  const Limits& limits) {
    const HttpCaller caller = caller_of(head, way);
    if (const Result<void> checked = check_way(access, caller); !checked) {
        return checked.error();
    }
    Result<OperatorOrder> order = parse_order_target(text_of(head.target()), limits);
    if (!order) {
        return order;
    }
    // A user who may open a run's own socket may end the run anyway; a browser must mean it.
    const Result<void> admitted =
        way.is_on_this_machine ? admit_operator(access, caller) : admit_owner(access, caller);
    return admitted ? order : admitted.error();
}

}  // namespace ddprun::rdzv
