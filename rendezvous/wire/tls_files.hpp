#pragma once

#include <string>

namespace ddprun::rdzv {

/// The PEM files of --tls-cert, --tls-key and --tls-ca; empty: not given.
struct TlsFiles {
    std::string cert;  ///< what this process shows, with the chain that leads to the authority
    std::string key;   ///< its private key, not encrypted
    std::string ca;    ///< the authorities whose certificates this process takes

    /// One of them was given.
    [[nodiscard]] bool is_on() const { return !cert.empty() || !key.empty() || !ca.empty(); }
};

}  // namespace ddprun::rdzv
