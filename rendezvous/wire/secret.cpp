#include "rendezvous/wire/secret.hpp"

#include <utility>

#include <openssl/crypto.h>

namespace ddprun::rdzv {

JobSecret::JobSecret(const Bytes& bytes, std::string origin)
    : bytes_(bytes), origin_(std::move(origin)) {}

JobSecret::~JobSecret() {
    OPENSSL_cleanse(bytes_.data(), bytes_.size());
}

bool is_same(const JobSecret& left, const JobSecret& right) {
    return CRYPTO_memcmp(left.reveal().data(), right.reveal().data(), JobSecret::kBytes) == 0;
}

}  // namespace ddprun::rdzv
