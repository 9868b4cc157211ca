#include "rendezvous/wire/base64.hpp"

#include <utility>

#include <openssl/evp.h>

#include "base/check.hpp"

namespace ddprun::rdzv {

namespace {

bool is_digit_of_base64(char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '+' ||
           c == '/';
}

const unsigned char* input_of(std::string_view text) {
    return reinterpret_cast<const unsigned char*>(text.data());
}

unsigned char* output_of(std::string& text) {
    return reinterpret_cast<unsigned char*>(text.data());
}

}  // namespace

std::string base64_encode(std::string_view bytes) {
    std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');  // and OpenSSL's NUL
    const int length =
        EVP_EncodeBlock(output_of(text), input_of(bytes), static_cast<int>(bytes.size()));
    DDP_CHECK(length >= 0, length);
    text.resize(static_cast<std::size_t>(length));
    return text;
}

std::optional<std::string> base64_decode(std::string_view text) {
    if (text.empty()) {
        return std::string();
    }
    std::size_t padding = 0;
    while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=') {
        ++padding;
    }
    // OpenSSL itself lets spaces and early padding pass, and counts padding as bytes.
    for (const char c : text.substr(0, text.size() - padding)) {
        if (!is_digit_of_base64(c)) {
            return std::nullopt;
        }
    }
    if (text.size() % 4 != 0) {
        return std::nullopt;
    }
    std::string bytes(text.size() / 4 * 3, '\0');
    const int length =
        EVP_DecodeBlock(output_of(bytes), input_of(text), static_cast<int>(text.size()));
    if (length < 0) {
        return std::nullopt;
    }
    bytes.resize(static_cast<std::size_t>(length) - padding);
    // OpenSSL ignores the bits behind the last byte; there is one way to write any bytes.
    return base64_encode(bytes) == text ? std::optional(std::move(bytes)) : std::nullopt;
}

}  // namespace ddprun::rdzv
