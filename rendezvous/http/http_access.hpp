#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "rendezvous/wire/secret.hpp"

namespace ddprun::rdzv {

/// Whom a daemon answers over HTTP, beside who asks on this machine.
struct HttpAccess {
    std::optional<JobSecret> token;  ///< its digits let a client ask from anywhere; none: no client
    /// The operators': who shows its order_token_of() may ask, too, and give orders. It is a key of
    /// the wire's handshake: itself it is no token.
    std::optional<JobSecret> operator_secret;
    std::string hostname;  ///< a name of this machine, as its browsers may write it
    bool has_tls = false;  ///< other machines are answered inside TLS only
};

/// Source of a request, and the headers that say more; empty: there is none.
struct HttpCaller {
    bool is_on_this_machine = false;  ///< its address is one of this machine's
    bool is_hidden = false;           ///< inside TLS
    std::string_view host;
    std::string_view origin;
    std::string_view authorization;
    std::string_view content_type;
    std::string_view fetch_site;  ///< Sec-Fetch-Site: whose page asks, as a browser says
};

/// The text after `Authorization: Bearer ` that proves the token. Never write it anywhere else.
[[nodiscard]] std::string http_token_of(const JobSecret& token);

/// The same of operators: derived, so that a reader on its way does not have their secret.
[[nodiscard]] std::string order_token_of(const JobSecret& operator_secret);

/// Whether `caller` may ask the way that it does, whatever it asks for and shows: not in clear from
/// another machine where TLS is spoken. PermissionDenied says how instead. Pure.
[[nodiscard]] Result<void> check_way(const HttpAccess& access, const HttpCaller& caller);

/// Whether `caller` is answered; PermissionDenied says what to do. A browser on this machine may be
/// showing a page of another site: who asks without the token must have meant this machine, by an
/// address, "localhost" or its name (else it may be DNS that was rebound), and must not come from
/// another site. Pure; the texts may be anybody's.
[[nodiscard]] Result<void> admit(const HttpAccess& access, const HttpCaller& caller);

/// Whether an admitted `caller` may make nodes read logs and stacks. A browser that loads an image
/// sends no Origin, and Sec-Fetch-Site only to addresses that it trusts: loopback ones and https.
/// At others the header is needed, or the token. Pure.
[[nodiscard]] Result<void> admit_reader(const HttpCaller& caller);

/// Whether `caller` may give orders: who shows the operators' token, in a request that no form of
/// another site's page can make. PermissionDenied: orders are not allowed, or not from that page;
/// BadSecret: it is not that token, or the secret itself; InvalidArgument: it sends no JSON. Pure.
[[nodiscard]] Result<void> admit_operator(const HttpAccess& access, const HttpCaller& caller);

/// Whether `caller`, whose uid is the owner's of this process or root's, may give orders here: in a
/// request that no form of another site's page can make. Failure as above. Pure.
[[nodiscard]] Result<void> admit_owner(const HttpAccess& access, HttpCaller caller);

}  // namespace ddprun::rdzv
