#include "rendezvous/wire/mac.hpp"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include "base/check.hpp"

namespace ddprun::rdzv {

namespace {

struct FreeAlgorithm {
    void operator()(EVP_MAC* algorithm) const { EVP_MAC_free(algorithm); }
};

const unsigned char* bytes_of(std::string_view text) {
    return reinterpret_cast<const unsigned char*>(text.data());
}

EVP_MAC_CTX* as_context(void* context) {
    return static_cast<EVP_MAC_CTX*>(context);
}

// OpenSSL fails here only without memory or with a broken installation: both are fatal.
EVP_MAC_CTX* make_context(std::span<const unsigned char, 32> key) {
    const std::unique_ptr<EVP_MAC, FreeAlgorithm> algorithm(
        EVP_MAC_fetch(nullptr, OSSL_MAC_NAME_HMAC, nullptr));
    DDP_CHECK(algorithm != nullptr);
    EVP_MAC_CTX* const context = EVP_MAC_CTX_new(algorithm.get());
    DDP_CHECK(context != nullptr);
    char digest[] = "SHA256";
    const OSSL_PARAM parameters[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
        OSSL_PARAM_construct_end(),
    };
    DDP_CHECK(EVP_MAC_init(context, key.data(), key.size(), parameters) == 1);
    return context;
}

}  // namespace

void MacKey::Free::operator()(void* context) const {
    EVP_MAC_CTX_free(as_context(context));
}

MacKey::MacKey(std::span<const unsigned char, 32> key) : context_(make_context(key)) {}

Mac MacKey::of(std::initializer_list<std::string_view> parts) {
    EVP_MAC_CTX* const context = as_context(context_.get());
    // Without a key: the one it has, from the beginning.
    DDP_CHECK(EVP_MAC_init(context, nullptr, 0, nullptr) == 1);
    for (const std::string_view part : parts) {
        DDP_CHECK(EVP_MAC_update(context, bytes_of(part), part.size()) == 1);
    }
    Mac mac{};
    std::size_t size = 0;
    DDP_CHECK(EVP_MAC_final(context, mac.data(), &size, mac.size()) == 1);
    DDP_CHECK(size == mac.size(), size);
    return mac;
}

Mac sha256(std::string_view bytes) {
    Mac digest{};
    unsigned int size = 0;
    DDP_CHECK(EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, EVP_sha256(), nullptr) ==
              1);
    DDP_CHECK(size == digest.size(), size);
    return digest;
}

bool equal_in_constant_time(std::string_view left, std::string_view right) {
    return left.size() == right.size() &&
           CRYPTO_memcmp(left.data(), right.data(), left.size()) == 0;
}

}  // namespace ddprun::rdzv
