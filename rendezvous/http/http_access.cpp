#include "rendezvous/http/http_access.hpp"

#include <algorithm>
#include <cctype>
#include <span>
#include <utility>

#include <boost/asio/ip/address.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/printable.hpp"
#include "rendezvous/wire/endpoint.hpp"
#include "rendezvous/wire/mac.hpp"

namespace ddprun::rdzv {

namespace {

constexpr std::size_t kHeaderColumns = 80;

constexpr const char* kSecretItself =
    "that is the operators' secret itself, which must not travel: send what `ddpctl token "
    "--operator-secret-file FILE` prints";

/// "Bearer " and these digits, in either case.
bool shows(std::string_view authorization, const std::string& digits) {
    constexpr std::string_view kScheme = "Bearer ";
    if (!authorization.starts_with(kScheme)) {
        return false;
    }
    std::string given(authorization.substr(kScheme.size()));
    std::transform(given.begin(), given.end(), given.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return equal_in_constant_time(given, digits);
}

std::string digits_of(std::span<const unsigned char> bytes) {
    return fmt::format("{:02x}", fmt::join(bytes, ""));
}

/// The endpoint that a Host header names. It has a port, unless that is HTTP's own.
Result<Endpoint> read_host(std::string_view host) {
    const Result<Endpoint> given = parse_endpoint(host);
    return given ? given : parse_endpoint(fmt::format("{}:80", host));
}

bool is_loopback(std::string_view host) {
    const Result<Endpoint> named = read_host(host);
    if (!named) {
        return false;
    }
    boost::system::error_code failure;
    const auto address = boost::asio::ip::make_address(named->host, failure);
    return failure ? named->host == "localhost" : address.is_loopback();
}

/// Whether this Host header names this machine.
bool is_ours(std::string_view host, const std::string& hostname) {
    const Result<Endpoint> named = read_host(host);
    if (!named) {
        return false;
    }
    boost::system::error_code failure;
    boost::asio::ip::make_address(named->host, failure);
    return !failure || named->host == "localhost" || (!hostname.empty() && named->host == hostname);
}

Error denied(std::string what) {
    return {ErrorCode::PermissionDenied, std::move(what)};
}

/// A browser loads images and scripts of other sites without an Origin, but says whose page asks.
Result<void> check_site(const HttpCaller& caller) {
    if (!caller.fetch_site.empty() && caller.fetch_site != "none" &&
        caller.fetch_site != "same-origin") {
        return denied(fmt::format("Sec-Fetch-Site {}: pages of other sites are not answered",
                                  printable(caller.fetch_site, kHeaderColumns)));
    }
    const char* const scheme = caller.is_hidden ? "https" : "http";
    if (!caller.origin.empty() && caller.origin != fmt::format("{}://{}", scheme, caller.host)) {
        return denied(fmt::format("Origin {}: pages of other sites are not answered",
                                  printable(caller.origin, kHeaderColumns)));
    }
    return {};
}

/// Requires JSON, which a page's form cannot send without a preflight request.
Result<void> check_type_of_order(const HttpCaller& caller) {
    constexpr std::string_view kJson = "application/json";
    if (!caller.content_type.starts_with(kJson)) {
        return Error{ErrorCode::InvalidArgument,
                     fmt::format("Content-Type {}: orders are {}",
                                 printable(caller.content_type, kHeaderColumns), kJson)};
    }
    return {};
}

}  // namespace

std::string http_token_of(const JobSecret& token) {
    return digits_of(token.reveal());
}

std::string order_token_of(const JobSecret& operator_secret) {
    using namespace std::string_view_literals;
    return digits_of(MacKey(operator_secret.reveal()).of({"ddprun http orders\0"sv}));
}

Result<void> check_way(const HttpAccess& access, const HttpCaller& caller) {
    if (!access.has_tls || caller.is_hidden || caller.is_on_this_machine) {
        return {};
    }
    const std::string what = fmt::format(
        "this rendezvous speaks TLS, and HTTP in clear with its own machine only: ask https://{} "
        "(ddpctl: --tls-ca FILE)",
        printable(caller.host, kHeaderColumns));
    return denied(caller.authorization.empty()
                      ? what
                      : what + "; the token has crossed the network in clear: make another");
}

Result<void> admit(const HttpAccess& access, const HttpCaller& caller) {
    if (!caller.authorization.empty()) {
        const std::optional<JobSecret>& secret = access.operator_secret;
        if ((access.token && shows(caller.authorization, http_token_of(*access.token))) ||
            (secret && shows(caller.authorization, order_token_of(*secret)))) {
            return {};
        }
        return secret && shows(caller.authorization, digits_of(secret->reveal()))
                   ? denied(kSecretItself)
                   : denied("the token is not that of this rendezvous's --http-token-file");
    }
    if (!caller.is_on_this_machine) {
        return denied(
            "only programs of this machine are answered; others show the token of "
            "--http-token-file: Authorization: Bearer TOKEN");
    }
    if (!is_ours(caller.host, access.hostname)) {
        return denied(fmt::format("Host {}: ask by this machine's address, or as localhost",
                                  printable(caller.host, kHeaderColumns)));
    }
    return check_site(caller);
}

Result<void> admit_reader(const HttpCaller& caller) {
    if (!caller.authorization.empty() || !caller.fetch_site.empty() || caller.is_hidden ||
        is_loopback(caller.host)) {
        return {};
    }
    return denied(fmt::format(
        "Host {}: nodes are asked for logs and stacks by who asks as localhost, by https, with a "
        "token, or with the header Sec-Fetch-Site: none, which no page of another site can send",
        printable(caller.host, kHeaderColumns)));
}

Result<void> admit_operator(const HttpAccess& access, const HttpCaller& caller) {
    if (!access.operator_secret) {
        return denied("this rendezvous takes no orders; start it with --operator-secret-file FILE");
    }
    if (const Result<void> checked = check_site(caller); !checked) {
        return checked;
    }
    if (shows(caller.authorization, digits_of(access.operator_secret->reveal()))) {
        return Error{ErrorCode::BadSecret, kSecretItself};
    }
    if (!shows(caller.authorization, order_token_of(*access.operator_secret))) {
        return Error{ErrorCode::BadSecret,
                     "orders need Authorization: Bearer TOKEN, which `ddpctl token` prints of this "
                     "rendezvous's --operator-secret-file"};
    }
    return check_type_of_order(caller);
}

Result<void> admit_owner(const HttpAccess& access, HttpCaller caller) {
    caller.authorization = {};  // The kernel knows who it is.
    if (const Result<void> admitted = admit(access, caller); !admitted) {
        return admitted;
    }
    return check_type_of_order(caller);
}

}  // namespace ddprun::rdzv
