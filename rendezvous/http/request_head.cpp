#include "rendezvous/http/request_head.hpp"

#include <string_view>

namespace ddprun::rdzv {

namespace {

namespace http = boost::beast::http;

std::string_view text_of(boost::beast::string_view view) {
    return {view.data(), view.size()};
}

}  // namespace

Result<WatchRequest> judge(const http::request_header<http::fields>& head,
                           std::optional<bool> is_on_this_machine, const HttpAccess& access) {
    if (is_on_this_machine) {
        const HttpCaller caller{.is_on_this_machine = *is_on_this_machine,
                                .host = text_of(head[http::field::host]),
                                .origin = text_of(head[http::field::origin]),
                                .authorization = text_of(head[http::field::authorization])};
        if (const Result<void> admitted = admit(access, caller); !admitted) {
            return admitted.error();
        }
    }
    return parse_watch_request(text_of(head.method_string()), text_of(head.target()),
                               text_of(head[http::field::accept]), text_of(head["Last-Event-ID"]));
}

}  // namespace ddprun::rdzv
