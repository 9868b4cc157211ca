#include "agent/contract/notify_target.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

namespace ddprun::agent {

namespace {

constexpr std::string_view kHttp = "http://";
constexpr std::string_view kHttps = "https://";

/// True if no character would end a line of the request, or a word of it.
bool is_plain(std::string_view text) {
    return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < '\x7f'; });
}

Error wrong_url() {
    return Error{ErrorCode::InvalidArgument,
                 "the URL must be http://HOST[:PORT][/PATH] or https://HOST[:PORT][/PATH], "
                 "without blanks, a user or a password (it is not shown, for it may hold a token)"};
}

}  // namespace

Result<NotifyTarget> read_notify_target(const std::string& text) {
    NotifyUrl url;
    url.is_tls = text.starts_with(kHttps);
    if (!url.is_tls && !text.starts_with(kHttp)) {
        return NotifyTarget(NotifyCommand{text});
    }
    std::string_view rest = text;
    rest.remove_prefix(url.is_tls ? kHttps.size() : kHttp.size());
    rest = rest.substr(0, rest.find('#'));
    const std::size_t end = std::min(rest.find_first_of("/?"), rest.size());
    url.authority = rest.substr(0, end);
    url.path = rest.substr(end);
    if (!url.path.starts_with('/')) {
        url.path.insert(0, "/");
    }
    const std::size_t bracket = url.authority.rfind(']');
    const bool has_port =
        url.authority.find(':', bracket == std::string::npos ? 0 : bracket) != std::string::npos;
    Result<rdzv::Endpoint> server = rdzv::parse_endpoint(
        has_port ? url.authority : url.authority + (url.is_tls ? ":443" : ":80"));
    if (!server || server->port == 0 || !is_plain(rest) ||
        url.authority.find('@') != std::string::npos) {
        return wrong_url();
    }
    url.server = *std::move(server);
    return NotifyTarget(std::move(url));
}

std::string name_of(const NotifyTarget& target) {
    const NotifyUrl* const url = std::get_if<NotifyUrl>(&target);
    return url == nullptr ? "the command"
                          : std::string(url->is_tls ? kHttps : kHttp) + url->authority;
}

}  // namespace ddprun::agent
