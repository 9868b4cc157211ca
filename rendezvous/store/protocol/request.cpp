#include "rendezvous/store/protocol/request.hpp"

#include <array>
#include <bit>
#include <cstring>

#include <fmt/format.h>

#include "base/check.hpp"

// Integers travel in host order, and every peer there is runs little-endian.
static_assert(std::endian::native == std::endian::little);

namespace ddprun::rdzv {

namespace {

/// Fields of a request: o its opcode, k key, v value, 4 and 8 integers of that many bytes, n a
/// count: what follows it comes that many times, c a list of clients.
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

constexpr std::array<Layout, 3> kRelayLayouts{{{"RELAY", "4"}, {"ENTER", ""}, {"LEAVE", ""}}};
constexpr std::size_t kFirstRelayLayout = static_cast<std::size_t>(StoreOpcode::Relay);

/// Null when there is no such operation.
const Layout* layout_of(std::size_t opcode) {
    if (opcode < kLayouts.size()) {
        return &kLayouts[opcode];
    }
    const bool is_relays =
        opcode >= kFirstRelayLayout && opcode - kFirstRelayLayout < kRelayLayouts.size();
    return is_relays ? &kRelayLayouts[opcode - kFirstRelayLayout] : nullptr;
}

constexpr const char* kRequest = "o";
constexpr const char* kRelayedRequest = "co";

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
    const Layout* layout = layout_of(static_cast<std::size_t>(opcode));
    DDP_CHECK(layout != nullptr, static_cast<int>(opcode));
    return layout->name;
}

bool may_grow_store(StoreOpcode opcode) {
    switch (opcode) {
        case StoreOpcode::Set:
        case StoreOpcode::CompareSet:
        case StoreOpcode::Add:
        case StoreOpcode::Append:
        case StoreOpcode::MultiSet:
        case StoreOpcode::QueuePush:
        case StoreOpcode::Barrier:
            return true;
        default:
            return false;
    }
}

Result<std::size_t> RequestSplitter::split(std::string_view bytes) {
    if (bytes.empty()) {
        return std::size_t{0};
    }
    if (field_ == nullptr) {
        field_ = is_relay_ ? kRelayedRequest : kRequest;
        position_ = 0;
        announced_ = 1;
        repeats_ = 0;
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
    if (opcode_ == StoreOpcode::Relay) {
        if (const auto version = read_integer<std::uint32_t>(bytes.substr(1));
            version != kRelayVersion) {
            return Error{ErrorCode::BadMessage,
                         fmt::format("a relay of version {}, not {}; start the same ddprun on "
                                     "every node",
                                     version, kRelayVersion)};
        }
        is_relay_ = true;
    }
    may_become_relay_ = may_become_relay_ && opcode_ == StoreOpcode::Validate;
    field_ = nullptr;
    return position_;
}

/// Reads the opcode and continues with its fields.
Result<bool> RequestSplitter::begin(std::string_view bytes) {
    if (position_ == bytes.size()) {
        return false;
    }
    const auto opcode = static_cast<std::uint8_t>(bytes[position_]);
    const Layout* layout = layout_of(opcode);
    opcode_ = StoreOpcode{opcode};
    const bool is_known = opcode_ < StoreOpcode::Relay ||
                          (opcode_ == StoreOpcode::Relay ? may_become_relay_ : is_relay_);
    if (layout == nullptr || !is_known) {
        return Error{ErrorCode::BadMessage, fmt::format("unknown operation {:#04x}", opcode)};
    }
    if ((opcode_ == StoreOpcode::Validate) == is_open_) {
        return Error{ErrorCode::BadMessage, is_open_
                                                ? "a second VALIDATE"
                                                : fmt::format("{} before VALIDATE", layout->name)};
    }
    field_ = layout->fields;
    ++position_;
    return true;
}

/// Passes over the next field; false when it is not all there.
Result<bool> RequestSplitter::advance(std::string_view bytes) {
    switch (*field_) {
        case 'o':
            return begin(bytes);
        case 'c':
            return skip_clients(bytes);
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

Result<bool> RequestSplitter::skip_clients(std::string_view bytes) {
    constexpr std::size_t kNumberBytes = 4;
    const std::size_t clients_max = frame_clients_max(*limits_);
    if (bytes.size() - position_ < kNumberBytes) {
        return false;
    }
    const auto count = read_integer<std::uint32_t>(bytes.substr(position_));
    if (count == 0 || count > clients_max) {
        return Error{ErrorCode::LimitExceeded,
                     fmt::format("a request of {} clients of a relay; there are 1 to {}", count,
                                 clients_max)};
    }
    announced_ = position_ + kNumberBytes + count * kNumberBytes;
    if (bytes.size() < announced_) {
        return false;
    }
    position_ = announced_;
    ++field_;
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
