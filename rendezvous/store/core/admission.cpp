#include "rendezvous/store/core/admission.hpp"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>

namespace ddprun::rdzv {

namespace {

using Bytes = std::array<unsigned char, 16>;

constexpr Bytes kMappedPrefix{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
constexpr std::size_t kMappedPrefixBytes = 12;

Bytes mapped(const in_addr& address) {
    Bytes bytes = kMappedPrefix;
    std::memcpy(bytes.data() + kMappedPrefixBytes, &address, sizeof address);
    return bytes;
}

std::optional<Bytes> bytes_of(const sockaddr_storage& address) {
    if (address.ss_family == AF_INET) {
        sockaddr_in v4{};
        std::memcpy(&v4, &address, sizeof v4);
        return mapped(v4.sin_addr);
    }
    if (address.ss_family == AF_INET6) {
        sockaddr_in6 v6{};
        std::memcpy(&v6, &address, sizeof v6);
        Bytes bytes{};
        std::memcpy(bytes.data(), &v6.sin6_addr, bytes.size());
        return bytes;
    }
    return std::nullopt;
}

}  // namespace

bool parse_address(const std::string& host, std::uint16_t port, sockaddr_storage& address,
                   socklen_t& size) {
    address = {};
    sockaddr_in v4{};
    if (::inet_pton(AF_INET, host.c_str(), &v4.sin_addr) == 1) {
        v4.sin_family = AF_INET;
        v4.sin_port = htons(port);
        std::memcpy(&address, &v4, sizeof v4);
        size = sizeof v4;
        return true;
    }
    sockaddr_in6 v6{};
    const std::size_t scope = std::min(host.find('%'), host.size());
    if (::inet_pton(AF_INET6, host.substr(0, scope).c_str(), &v6.sin6_addr) != 1) {
        return false;
    }
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    if (scope < host.size()) {
        v6.sin6_scope_id = ::if_nametoindex(host.c_str() + scope + 1);
    }
    std::memcpy(&address, &v6, sizeof v6);
    size = sizeof v6;
    return true;
}

Admission::Admission(const std::vector<std::string>& addresses) : admits_all_(addresses.empty()) {
    addresses_.reserve(addresses.size());
    for (const std::string& text : addresses) {
        sockaddr_storage address{};
        socklen_t size = 0;
        const bool is_address = parse_address(text, 0, address, size);
        if (const std::optional<Bytes> bytes = bytes_of(address); is_address && bytes) {
            addresses_.push_back(*bytes);
        } else {
            unusable_.push_back(text);
        }
    }
    std::sort(addresses_.begin(), addresses_.end());
}

void Admission::include(const Admission& other, std::size_t addresses_max) {
    std::vector<Bytes> both;
    std::set_union(addresses_.begin(), addresses_.end(), other.addresses_.begin(),
                   other.addresses_.end(), std::back_inserter(both));
    if (both.size() <= addresses_max) {
        addresses_ = std::move(both);
    }
}

bool Admission::admits(const sockaddr_storage& address) const {
    if (admits_all_) {
        return true;
    }
    const std::optional<Bytes> bytes = bytes_of(address);
    return bytes && std::binary_search(addresses_.begin(), addresses_.end(), *bytes);
}

std::string address_text(const sockaddr_storage& address) {
    const std::optional<Bytes> bytes = bytes_of(address);
    if (!bytes) {
        return "an address that is not IP";
    }
    std::array<char, INET6_ADDRSTRLEN> text{};
    const bool is_v4 = std::equal(kMappedPrefix.begin(), kMappedPrefix.begin() + kMappedPrefixBytes,
                                  bytes->begin());
    const unsigned char* from = bytes->data() + (is_v4 ? kMappedPrefixBytes : 0);
    return ::inet_ntop(is_v4 ? AF_INET : AF_INET6, from, text.data(), text.size());
}

std::uint16_t port_of(const sockaddr_storage& address) {
    const void* const any = &address;
    return ntohs(address.ss_family == AF_INET6 ? static_cast<const sockaddr_in6*>(any)->sin6_port
                                               : static_cast<const sockaddr_in*>(any)->sin_port);
}

}  // namespace ddprun::rdzv
