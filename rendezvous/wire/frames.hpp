#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "rendezvous/wire/mac.hpp"

/// A frame is: u32 big-endian length of the body, the body, and, if the connection has keys, the
/// first 16 bytes of a MAC over (u64 number of the frame in its direction, length, body). The
/// number is not sent: a frame that was repeated, left out, reordered or sent back does not verify.
namespace ddprun::rdzv {

inline constexpr std::size_t kFrameLengthBytes = 4;
inline constexpr std::size_t kFrameMacBytes = 16;

/// Seals the outgoing frames of one connection, in order.
class FrameWriter {
public:
    explicit FrameWriter(const std::optional<Mac>& key);

    /// Appends the frame of `body` to `out`.
    void append(std::string_view body, std::string& out);

private:
    std::optional<MacKey> key_;
    std::uint64_t next_number_ = 0;
};

/// Takes the incoming bytes of one connection, cut anywhere, and gives back the bodies.
class FrameReader {
public:
    FrameReader(const std::optional<Mac>& key, std::size_t body_bytes_max);

    /// Keeps a copy of what is not yet a whole frame. Call next() until it has no more: at most one
    /// frame and one `bytes` are ever kept.
    void feed(std::string_view bytes);

    /// The next body, valid until the next call of any method; nothing: more bytes are needed.
    /// Failure (LimitExceeded before anything of that size is kept, BadMessage for a wrong MAC):
    /// the connection is of no use any more, and every later call fails too.
    [[nodiscard]] Result<std::optional<std::string_view>> next();

    [[nodiscard]] std::size_t kept_bytes() const { return buffer_.size() - consumed_; }

private:
    void drop_consumed();

    std::optional<MacKey> key_;
    std::size_t body_bytes_max_;
    std::uint64_t next_number_ = 0;
    std::string buffer_;
    std::size_t consumed_ = 0;
    bool is_broken_ = false;
};

}  // namespace ddprun::rdzv
