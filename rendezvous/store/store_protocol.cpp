#include "rendezvous/store/store_protocol.hpp"

#include <array>
#include <bit>
#include <cstring>

#include <fmt/format.h>

#include "rendezvous/base/check.hpp"

// Integers travel in host order, and every peer there is runs little-endian.
static_assert(std::endian::native == std::endian::little);

namespace ddprun::rdzv {

namespace {

/// Fields of a request: k key, v value, 4 and 8 integers of that many bytes, n a count: what
/// follows it comes that many times.
struct Layout {
    std::string_view name;
    const char* fields;
};

constexpr std::array<Layout, 19> kLayouts{{
    {"VALIDATE", "4"},   {"SET", "kv"},     {"COMPARE_SET", "kvv"}, {"GET", "k"},
    {"ADD", "k8"},       {"CHECK", "nk"},   {"WAIT", "nk"},         {"GETNUMKEYS", ""},
    {"DELETE_KEY", "k"}, {"APPEND", "kv"},  {"MULTI_GET", "nk"},    {"MULTI_SET", "nkv"},
    {"CANCEL_WAIT", ""}, {"PING", "4"},     {"QUEUE_PUSH", "kv"},   {"QUEUE_POP", "k"},
    {"QUEUE_LEN", "k"},  {"LIST_KEYS", ""}, {"BARRIER", "k8"},
}};

constexpr std::size_t kLengthBytes = 8;

template <typename Integer>
Integer read_integer(std::string_view bytes) {
    Integer value{};
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
}

template <typename Integer>
void append_integer(std::string& out, Integer value) {
    std::array<char, sizeof value> bytes{};
    std::memcpy(bytes.data(), &value, sizeof value);
    out.append(bytes.data(), bytes.size());
}

}  // namespace

std::string_view name_of(StoreOpcode opcode) {
    return kLayouts.at(static_cast<std::size_t>(opcode)).name;
}

std::string printable(std::string_view bytes) {
    constexpr std::size_t kShown = 64;
    std::string text;
    for (char byte : bytes.substr(0, kShown)) {
        if (byte >= ' ' && byte <= '~' && byte != '\\') {
            text += byte;
        } else {
            text += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
        }
    }
    return bytes.size() > kShown ? text + "..." : text;
}

Result<std::size_t> RequestSplitter::split(std::string_view bytes) {
    if (bytes.empty()) {
        return std::size_t{0};
    }
    if (field_ == nullptr) {
        if (Result<void> begun = begin(static_cast<std::uint8_t>(bytes.front())); !begun) {
            return begun.error();
        }
    }
    while (true) {
        if (*field_ == '\0') {
            if (repeats_ == 0) {
                break;
            }
            --repeats_;
            field_ = repeated_;
        }
        Result<bool> advanced = advance(bytes);
        if (!advanced) {
            return advanced.error();
        }
        if (!*advanced) {
            return std::size_t{0};
        }
    }
    if (opcode_ == StoreOpcode::Validate) {
        if (read_integer<std::uint32_t>(bytes.substr(1)) != kStoreMagic) {
            return Error{ErrorCode::BadMessage, "VALIDATE has a wrong magic number"};
        }
        is_open_ = true;
    }
    field_ = nullptr;
    return position_;
}

Result<void> RequestSplitter::begin(std::uint8_t opcode) {
    if (opcode >= kLayouts.size()) {
        return Error{ErrorCode::BadMessage, fmt::format("unknown operation {:#04x}", opcode)};
    }
    opcode_ = StoreOpcode{opcode};
    if ((opcode_ == StoreOpcode::Validate) == is_open_) {
        return Error{
            ErrorCode::BadMessage,
            is_open_ ? "a second VALIDATE" : fmt::format("{} before VALIDATE", name_of(opcode_))};
    }
    field_ = kLayouts[opcode].fields;
    position_ = 1;
    announced_ = 1;
    repeats_ = 0;
    return {};
}

/// Passes over the next field; false when it is not all there.
Result<bool> RequestSplitter::advance(std::string_view bytes) {
    switch (*field_) {
        case 'k':
            return skip_string(bytes, limits_->store_key_bytes_max);
        case 'v':
            return skip_string(bytes, limits_->store_value_bytes_max);
        case 'n':
            return skip_count(bytes);
        default:
            break;
    }
    const std::size_t size = *field_ == '4' ? 4 : 8;
    if (bytes.size() - position_ < size) {
        return false;
    }
    position_ += size;
    ++field_;
    return true;
}

Result<bool> RequestSplitter::skip_string(std::string_view bytes, std::size_t length_max) {
    if (bytes.size() - position_ < kLengthBytes) {
        return false;
    }
    const std::uint64_t length = read_integer<std::uint64_t>(bytes.substr(position_));
    if (length > length_max) {
        return Error{ErrorCode::LimitExceeded,
                     fmt::format("{} with a {} of {} bytes, more than {}", name_of(opcode_),
                                 *field_ == 'k' ? "key" : "value", length, length_max)};
    }
    if (position_ + length > limits_->store_request_bytes_max) {
        return Error{ErrorCode::LimitExceeded,
                     fmt::format("{} of more than {} bytes", name_of(opcode_),
                                 limits_->store_request_bytes_max)};
    }
    announced_ = position_ + kLengthBytes + length;
    if (bytes.size() < announced_) {
        return false;
    }
    position_ = announced_;
    ++field_;
    return true;
}

Result<bool> RequestSplitter::skip_count(std::string_view bytes) {
    if (bytes.size() - position_ < kLengthBytes) {
        return false;
    }
    const std::uint64_t count = read_integer<std::uint64_t>(bytes.substr(position_));
    if (count > limits_->store_keys_per_request_max) {
        return Error{ErrorCode::LimitExceeded,
                     fmt::format("{} of {} keys, more than {}", name_of(opcode_), count,
                                 limits_->store_keys_per_request_max)};
    }
    position_ += kLengthBytes;
    ++field_;
    repeated_ = field_;
    if (count == 0) {
        field_ += std::strlen(field_);
    } else {
        repeats_ = count - 1;
    }
    return true;
}

std::string_view FieldReader::take(std::size_t size) {
    DDP_CHECK(size <= rest_.size(), size, rest_.size());
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
}

std::uint32_t FieldReader::u32() {
    return read_integer<std::uint32_t>(take(4));
}

std::uint64_t FieldReader::u64() {
    return read_integer<std::uint64_t>(take(8));
}

std::int64_t FieldReader::i64() {
    return read_integer<std::int64_t>(take(8));
}

std::string_view FieldReader::text() {
    return take(u64());
}

void append_u8(std::string& out, std::uint8_t value) {
    append_integer(out, value);
}

void append_u32(std::string& out, std::uint32_t value) {
    append_integer(out, value);
}

void append_i64(std::string& out, std::int64_t value) {
    append_integer(out, value);
}

void append_text(std::string& out, std::string_view text) {
    append_integer(out, std::uint64_t{text.size()});
    out.append(text);
}

}  // namespace ddprun::rdzv
