#include "launcher/ctl/rendezvous_events.hpp"

#include <sys/socket.h>

#include <optional>
#include <utility>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/url/encode.hpp>
#include <boost/url/rfc/unreserved_chars.hpp>
#include <fmt/format.h>

#include "base/limits.hpp"
#include "rendezvous/http/http_access.hpp"
#include "rendezvous/transport/secret_file.hpp"

namespace ddprun::launcher {

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

/// An IPv4 or IPv6 socket.
Result<UniqueFd> connect_to(const rdzv::Endpoint& endpoint, const Limits& limits) {
    asio::io_context io(1);
    tcp::resolver resolver(io);
    tcp::socket socket(io);
    std::optional<error_code> done;
    error_code failure;
    const auto found = resolver.resolve(endpoint.host, std::to_string(endpoint.port), failure);
    if (!failure) {
        asio::async_connect(socket, found,
                            [&done](error_code result, const tcp::endpoint&) { done = result; });
        io.run_for(limits.connect_timeout);
        failure = done.value_or(asio::error::timed_out);
    }
    if (failure) {
        return Error{ErrorCode::Unreachable,
                     fmt::format("no rendezvous answers at {}: {}", rdzv::to_string(endpoint),
                                 failure.message())};
    }
    socket.native_non_blocking(false, failure);
    return UniqueFd(socket.release());
}

int family_of(int socket) {
    int family = AF_INET;
    socklen_t size = sizeof family;
    ::getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &family, &size);
    return family;
}

Result<void> show_from(const rdzv::Endpoint& endpoint, const std::string& target,
                       const std::shared_ptr<const rdzv::TlsContext>& tls, const std::string& token,
                       const TakePiece& take) {
    Result<UniqueFd> connected = connect_to(endpoint, Limits{});
    if (!connected) {
        return connected.error();
    }
    const std::string host = rdzv::to_string(endpoint);
    HttpRequest request("the rendezvous at " + host, tls);
    const int family = family_of(connected->get());
    const Result<void> sent = request.send(*std::move(connected), family, host, target, token);
    return sent ? request.copy_to(take) : sent;
}

/// Empty: none is shown.
Result<std::string> token_to_show(const RendezvousAsked& asked) {
    const bool is_operator = !asked.operator_secret_file.empty();
    if (!is_operator && asked.token_file.empty()) {
        return std::string();
    }
    const Result<rdzv::JobSecret> read =
        rdzv::load_secret(is_operator ? asked.operator_secret_file : asked.token_file);
    if (!read) {
        return read.error();
    }
    return is_operator ? rdzv::order_token_of(*read) : rdzv::http_token_of(*read);
}

std::string in_query(const std::string& text) {
    return boost::urls::encode(text, boost::urls::unreserved_chars);
}

}  // namespace

Result<void> show_from_any(const RendezvousAsked& asked, const std::string& target,
                           const TakePiece& take) {
    const Result<std::string> token = token_to_show(asked);
    if (!token) {
        return token.error();
    }
    std::optional<Error> failure;
    for (const rdzv::Endpoint& endpoint : asked.endpoints) {
        const Result<void> shown = show_from(endpoint, target, asked.tls, *token, take);
        const bool is_unreachable = !shown && shown.error().code == ErrorCode::Unreachable;
        if (shown || (!is_unreachable && shown.error().code != ErrorCode::NotFound)) {
            return shown;
        }
        // Another daemon may decide and have the job. The failure of one that answers counts.
        if (!failure || (failure->code == ErrorCode::Unreachable && !is_unreachable)) {
            failure = shown.error();
        }
    }
    return *std::move(failure);
}

std::string events_target(const std::string& job, std::uint64_t from, bool follows) {
    return fmt::format("/events?job={}&from={}&follow={}", in_query(job), from, follows ? 1 : 0);
}

std::string logs_target(const std::string& job, const LogsQuestion& logs) {
    std::string target = fmt::format("/logs?job={}&follow={}", in_query(job), logs.follows ? 1 : 0);
    if (!logs.ranks.empty()) {
        target += fmt::format("&rank={}", logs.ranks.front());
    }
    if (logs.generation) {
        target += fmt::format("&generation={}", *logs.generation);
    }
    if (logs.last_lines) {
        target += fmt::format("&lines={}", *logs.last_lines);
    }
    return logs.pattern.empty() ? target : target + "&grep=" + in_query(logs.pattern);
}

std::string stacks_target(const std::string& job, std::optional<int> rank) {
    const std::string target = fmt::format("/stacks?job={}", in_query(job));
    return rank ? target + fmt::format("&rank={}", *rank) : target;
}

}  // namespace ddprun::launcher
