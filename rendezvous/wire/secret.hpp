#pragma once

#include <array>
#include <cstddef>
#include <iosfwd>
#include <span>
#include <string>

#include <fmt/format.h>

namespace ddprun::rdzv {

/// The secret that only the nodes of a job and their rendezvous share. Cannot be printed or
/// compared; its bytes are wiped when it goes.
class JobSecret {
public:
    static constexpr std::size_t kBytes = 32;
    using Bytes = std::array<unsigned char, kBytes>;

    /// `origin` is the file it was read from, for messages to people.
    JobSecret(const Bytes& bytes, std::string origin);
    JobSecret(const JobSecret&) = default;
    JobSecret& operator=(const JobSecret&) = default;
    ~JobSecret();

    /// Only for computing MACs. Never write them anywhere.
    [[nodiscard]] std::span<const unsigned char, kBytes> reveal() const { return bytes_; }
    [[nodiscard]] const std::string& origin() const { return origin_; }

private:
    Bytes bytes_;
    std::string origin_;
};

/// Takes the same time wherever the two differ.
[[nodiscard]] bool is_same(const JobSecret& left, const JobSecret& right);

std::ostream& operator<<(std::ostream&, const JobSecret&) = delete;

}  // namespace ddprun::rdzv

/// A secret in a log line does not compile.
template <>
struct fmt::formatter<ddprun::rdzv::JobSecret> {
    formatter() = delete;
};
