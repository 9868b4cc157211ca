#include "rendezvous/http/http_request.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/printable.hpp"
#include "base/whole_number.hpp"

namespace ddprun::rdzv {

namespace {

constexpr std::size_t kShownColumns = 80;

Error bad_value(std::string_view what) {
    return {ErrorCode::InvalidArgument,
            fmt::format("{}: /events takes from=NUMBER and follow=0 or 1",
                        printable(what, kShownColumns))};
}

/// "from=3&follow=1"
Result<void> read_query(std::string_view query, WatchRequest& request) {
    while (!query.empty()) {
        const std::string_view one = query.substr(0, query.find('&'));
        query.remove_prefix(std::min(query.size(), one.size() + 1));
        const std::size_t equals = one.find('=');
        const std::string_view name = one.substr(0, equals);
        const std::string_view value = equals == one.npos ? "" : one.substr(equals + 1);
        const std::optional<std::uint64_t> number = whole_number<std::uint64_t>(value);
        if (name == "from" && number) {
            request.from = *number;
        } else if (name == "follow" && number && *number <= 1) {
            request.follows = *number == 1;
        } else {
            return bad_value(one);
        }
    }
    return {};
}

}  // namespace

Result<WatchRequest> parse_watch_request(std::string_view method, std::string_view target,
                                         std::string_view accept, std::string_view last_event_id) {
    const std::size_t question = target.find('?');
    const std::string_view path = target.substr(0, question);
    const std::string_view query = question == target.npos ? "" : target.substr(question + 1);
    if (path != "/status" && path != "/events") {
        return Error{ErrorCode::NotFound, fmt::format("{}: there are /status and /events",
                                                      printable(path, kShownColumns))};
    }
    if (method != "GET") {
        return Error{ErrorCode::Refused,
                     fmt::format("{}: only GET is answered", printable(method, kShownColumns))};
    }
    WatchRequest request;
    if (path == "/status") {
        return request;
    }
    request.what = WatchRequest::What::Events;
    request.is_sse = accept.find("text/event-stream") != accept.npos;
    request.follows = request.is_sse;
    if (const Result<void> read = read_query(query, request); !read) {
        return read.error();
    }
    // A browser that was cut off says so what it has.
    if (!last_event_id.empty()) {
        const std::optional<std::uint64_t> last = whole_number<std::uint64_t>(last_event_id);
        if (!last) {
            return bad_value(last_event_id);
        }
        request.from = *last + 1;
    }
    return request;
}

}  // namespace ddprun::rdzv
