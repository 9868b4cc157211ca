#include "rendezvous/store/protocol/value.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

namespace ddprun::rdzv {

std::string_view StoreValue::view() const {
    const std::string* own = std::get_if<std::string>(&bytes_);
    return own != nullptr ? std::string_view(*own) : std::get<SharedText>(bytes_).bytes;
}

void StoreValue::assign(std::string_view bytes) {
    if (std::string* own = std::get_if<std::string>(&bytes_)) {
        own->assign(bytes);
    } else {
        bytes_.emplace<std::string>(bytes);
    }
}

void StoreValue::assign(std::string_view bytes, const std::shared_ptr<const void>& owner) {
    if (owner != nullptr && bytes.size() >= kSharedValueBytesMin) {
        bytes_ = SharedText{.owner = owner, .bytes = bytes};
    } else {
        assign(bytes);
    }
}

void StoreValue::append(std::string_view bytes) {
    if (const SharedText* shared = std::get_if<SharedText>(&bytes_)) {
        std::string own(shared->bytes);
        bytes_ = std::move(own);
    }
    std::get<std::string>(bytes_).append(bytes);
}

SharedText StoreValue::share() {
    if (std::string* own = std::get_if<std::string>(&bytes_)) {
        auto owner = std::make_shared<const std::string>(std::move(*own));
        const std::string_view bytes = *owner;
        bytes_ = SharedText{.owner = std::move(owner), .bytes = bytes};
    }
    return std::get<SharedText>(bytes_);
}

Result<std::int64_t> counter_value(std::string_view text) {
    const std::size_t begin = std::min(text.find_first_not_of(" \t\n\v\f\r"), text.size());
    text.remove_prefix(begin);
    if (text.starts_with('+') && !text.starts_with("+-")) {
        text.remove_prefix(1);
    }
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{}) {
        return Error{ErrorCode::InvalidArgument, error == std::errc::result_out_of_range
                                                     ? "does not fit into 64 bits"
                                                     : "is no decimal number"};
    }
    return value;
}

}  // namespace ddprun::rdzv
