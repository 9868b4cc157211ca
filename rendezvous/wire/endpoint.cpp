#include "rendezvous/wire/endpoint.hpp"

#include <charconv>

#include <fmt/format.h>

namespace ddprun::rdzv {

std::string to_string(const Endpoint& endpoint) {
    const bool is_ipv6 = endpoint.host.find(':') != std::string::npos;
    return is_ipv6 ? fmt::format("[{}]:{}", endpoint.host, endpoint.port)
                   : fmt::format("{}:{}", endpoint.host, endpoint.port);
}

Result<Endpoint> parse_endpoint(std::string_view text) {
    const auto refuse = [text](const char* why) {
        return Error{ErrorCode::InvalidArgument,
                     fmt::format("endpoint '{}': {}; write HOST:PORT", text, why)};
    };
    const std::size_t colon = text.rfind(':');
    if (colon == std::string_view::npos) {
        return refuse("it has no port");
    }
    std::string_view host = text.substr(0, colon);
    const std::string_view digits = text.substr(colon + 1);
    if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
        host = host.substr(1, host.size() - 2);
    } else if (host.find(':') != std::string_view::npos) {
        return refuse("an IPv6 address needs brackets, as in [::1]:29400");
    }
    if (host.empty()) {
        return refuse("it has no host");
    }
    if (host.find_first_of("[]") != std::string_view::npos) {
        return refuse("brackets belong around an IPv6 address only");
    }
    std::uint16_t port = 0;
    const char* const end = digits.data() + digits.size();
    const auto [stopped_at, failure] = std::from_chars(digits.data(), end, port);
    if (failure != std::errc() || stopped_at != end) {
        return refuse("its port is no number from 0 to 65535");
    }
    return Endpoint{std::string(host), port};
}

}  // namespace ddprun::rdzv
