#include "rendezvous/wire/frames.hpp"

#include <fmt/format.h>

#include "base/check.hpp"
#include "rendezvous/wire/fixed_frames.hpp"

namespace ddprun::rdzv {

namespace {

// An idle connection keeps no more than this.
constexpr std::size_t kIdleBufferBytes = 4096;

// `framed` is the length and the body as they travel.
Mac seal(MacKey& key, std::uint64_t number, std::string_view framed) {
    std::string counter;
    append_number(counter, number, 8);
    return key.of({counter, framed});
}

std::optional<MacKey> keyed(const std::optional<Mac>& key) {
    return key ? std::optional<MacKey>(std::in_place, *key) : std::nullopt;
}

}  // namespace

FrameWriter::FrameWriter(const std::optional<Mac>& key) : key_(keyed(key)) {}

void FrameWriter::append(std::string_view body, std::string& out) {
    DDP_CHECK(body.size() <= UINT32_MAX, body.size());
    const std::size_t start = out.size();
    append_number(out, body.size(), kFrameLengthBytes);
    out.append(body);
    if (key_) {
        const Mac mac = seal(*key_, next_number_, std::string_view(out).substr(start));
        out.append(view(mac).substr(0, kFrameMacBytes));
    }
    ++next_number_;
}

FrameReader::FrameReader(const std::optional<Mac>& key, std::size_t body_bytes_max)
    : key_(keyed(key)), body_bytes_max_(body_bytes_max) {}

void FrameReader::drop_consumed() {
    buffer_.erase(0, consumed_);
    consumed_ = 0;
    if (buffer_.empty() && buffer_.capacity() > kIdleBufferBytes) {
        buffer_ = std::string();
    }
}

void FrameReader::feed(std::string_view bytes) {
    drop_consumed();
    buffer_.append(bytes);
}

Result<std::optional<std::string_view>> FrameReader::next() {
    if (is_broken_) {
        return Error{ErrorCode::BadMessage, "an earlier frame was bad"};
    }
    const std::string_view rest = std::string_view(buffer_).substr(consumed_);
    if (rest.size() < kFrameLengthBytes) {
        drop_consumed();
        return std::optional<std::string_view>();
    }
    const std::size_t body_bytes = read_number(rest.substr(0, kFrameLengthBytes));
    if (body_bytes > body_bytes_max_) {
        is_broken_ = true;
        return Error{ErrorCode::LimitExceeded, fmt::format("a frame of {} bytes, allowed are {}",
                                                           body_bytes, body_bytes_max_)};
    }
    const std::size_t framed_bytes = kFrameLengthBytes + body_bytes;
    const std::size_t mac_bytes = key_ ? kFrameMacBytes : 0;
    if (rest.size() < framed_bytes + mac_bytes) {
        drop_consumed();
        return std::optional<std::string_view>();
    }
    const std::string_view framed = rest.substr(0, framed_bytes);
    if (key_) {
        const Mac mac = seal(*key_, next_number_, framed);
        if (!equal_in_constant_time(rest.substr(framed_bytes, mac_bytes),
                                    view(mac).substr(0, kFrameMacBytes))) {
            is_broken_ = true;
            return Error{ErrorCode::BadMessage,
                         fmt::format("frame {} does not carry its MAC", next_number_)};
        }
    }
    ++next_number_;
    consumed_ += framed_bytes + mac_bytes;
    return std::optional<std::string_view>(framed.substr(kFrameLengthBytes));
}

}  // namespace ddprun::rdzv
