#include "launcher/ctl/tcp_sockets.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <optional>

#include "base/os/read_files.hpp"
#include "base/split.hpp"
#include "base/whole_number.hpp"

namespace ddprun::launcher {

namespace {

template <typename Number>
std::optional<Number> hexadecimal(std::string_view digits) {
    constexpr int kBase = 16;
    Number number = 0;
    const auto [end, failure] =
        std::from_chars(digits.data(), digits.data() + digits.size(), number, kBase);
    return failure == std::errc() && end == digits.data() + digits.size() ? std::optional(number)
                                                                          : std::nullopt;
}

std::string shown_address(const in6_addr& address) {
    std::array<char, INET6_ADDRSTRLEN> text{};
    if (IN6_IS_ADDR_V4MAPPED(&address)) {
        in_addr inside{};
        std::memcpy(&inside, address.s6_addr + sizeof address - sizeof inside, sizeof inside);
        ::inet_ntop(AF_INET, &inside, text.data(), text.size());
    } else {
        ::inet_ntop(AF_INET6, &address, text.data(), text.size());
    }
    return text.data();
}

/// "0100007F:72D8", or 32 digits: words in the machine's byte order.
std::optional<rdzv::Endpoint> kernels_endpoint(std::string_view text) {
    constexpr std::size_t kDigits = 8;  // of a word
    const std::size_t colon = text.find(':');
    if (colon != kDigits && colon != 4 * kDigits) {
        return std::nullopt;
    }
    std::array<std::uint32_t, 4> words{};
    for (std::size_t i = 0; i < colon / kDigits; ++i) {
        const auto word = hexadecimal<std::uint32_t>(text.substr(i * kDigits, kDigits));
        if (!word) {
            return std::nullopt;
        }
        words.at(i) = *word;
    }
    const auto port = hexadecimal<std::uint16_t>(text.substr(colon + 1));
    if (!port) {
        return std::nullopt;
    }
    std::array<char, INET6_ADDRSTRLEN> shown{};
    if (colon == kDigits) {
        ::inet_ntop(AF_INET, words.data(), shown.data(), shown.size());
        return rdzv::Endpoint{shown.data(), *port};
    }
    in6_addr address{};
    std::memcpy(&address, words.data(), sizeof address);
    return rdzv::Endpoint{shown_address(address), *port};
}

}  // namespace

std::vector<TcpSocket> parse_tcp_sockets(std::string_view table) {
    constexpr std::size_t kLocal = 1;
    constexpr std::size_t kRemote = 2;
    constexpr std::size_t kOwner = 7;
    constexpr std::size_t kInode = 9;
    std::vector<TcpSocket> sockets;
    for (const std::string_view line : split(table, '\n')) {
        std::vector<std::string_view> words = split(line, ' ');
        std::erase(words, "");
        if (words.size() <= kInode) {
            continue;
        }
        const auto local = kernels_endpoint(words[kLocal]);
        const auto remote = kernels_endpoint(words[kRemote]);
        const auto owner = whole_number<uid_t>(words[kOwner]);
        if (local && remote && owner) {
            sockets.push_back({.local = *local,
                               .remote = *remote,
                               .owner = *owner,
                               .inode = std::string(words[kInode])});
        }
    }
    return sockets;
}

std::vector<TcpSocket> tcp_sockets() {
    std::vector<TcpSocket> sockets;
    for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
        for (TcpSocket& socket : parse_tcp_sockets(read_whole(table).value_or(""))) {
            sockets.push_back(std::move(socket));
        }
    }
    return sockets;
}

}  // namespace ddprun::launcher
