#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ddprun::rdzv {

/// Which addresses a store answers. Addresses are compared as numbers; nothing is ever looked up.
class Admission {
public:
    /// Admits no client.
    Admission() = default;

    /// Admits the numeric `addresses`, or every client when there are none at all. Text that is no
    /// address admits no client and is kept in unusable(). A scope ("%eth0") is ignored.
    explicit Admission(const std::vector<std::string>& addresses);

    /// Admits also the addresses that `other` has listed, if there are then at most
    /// `addresses_max`.
    void include(const Admission& other, std::size_t addresses_max);

    [[nodiscard]] bool admits(const sockaddr_storage& address) const;
    [[nodiscard]] const std::vector<std::string>& unusable() const { return unusable_; }

private:
    /// IPv6, or IPv4 in its mapped form.
    using Bytes = std::array<unsigned char, 16>;

    bool admits_all_ = false;
    std::vector<Bytes> addresses_;  ///< sorted
    std::vector<std::string> unusable_;
};

/// "10.0.0.7" or "fd00::7": the address without port, an IPv4-mapped one as IPv4.
[[nodiscard]] std::string address_text(const sockaddr_storage& address);

/// A numeric address and a port as the kernel takes them; false when `host` is no address.
[[nodiscard]] bool parse_address(const std::string& host, std::uint16_t port,
                                 sockaddr_storage& address, socklen_t& size);

[[nodiscard]] std::uint16_t port_of(const sockaddr_storage& address);

/// As the kernel's calls take it.
[[nodiscard]] inline sockaddr* generic(sockaddr_storage& address) {
    return static_cast<sockaddr*>(static_cast<void*>(&address));
}

}  // namespace ddprun::rdzv
