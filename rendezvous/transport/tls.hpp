#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <openssl/ssl.h>

#include "base/result.hpp"
#include "rendezvous/wire/tls_files.hpp"

/// TLS 1.3 around everything that a connection says. It hides; who may speak is decided by the
/// handshake of protocol/handshake.hpp inside it, the same as without.
namespace ddprun::rdzv {

/// The first byte of a peer that begins with TLS.
inline constexpr char kTlsByte = 0x16;

/// Certificates and keys of one process, read once. Immutable; one thread.
class TlsContext {
public:
    /// Needs a certificate and its key. With an authority, who connects must show a certificate
    /// of it. Blocks on the file system. Failure names the file.
    [[nodiscard]] static Result<std::shared_ptr<const TlsContext>> for_rendezvous(
        const TlsFiles& files);

    /// Needs an authority; certificate and key are for daemons that want to see one. The daemon's
    /// certificate must be for one of `names`: host names or addresses.
    [[nodiscard]] static Result<std::shared_ptr<const TlsContext>> for_client(
        const TlsFiles& files, std::vector<std::string> names);

    /// As for_client(), for a daemon with any certificate of the authority: the addresses of nodes
    /// are in no certificate. The handshake inside then has to prove binding().
    [[nodiscard]] static Result<std::shared_ptr<const TlsContext>> for_partner(
        const TlsFiles& files);

private:
    friend class TlsChannel;
    struct Free {
        void operator()(SSL_CTX* context) const { ::SSL_CTX_free(context); }
    };

    TlsContext() = default;
    static Result<std::shared_ptr<TlsContext>> load(const TlsFiles& files);
    static Result<std::shared_ptr<TlsContext>> make_client(const TlsFiles& files);

    std::unique_ptr<SSL_CTX, Free> context_;
    bool is_client_ = false;
    bool has_any_name_ = false;
    std::vector<std::string> names_;
    std::string cert_;  ///< for messages to people
};

/// One end of one TLS connection, from memory to memory: what arrived goes in through feed(), what
/// is to be sent comes out of take_output() after any other call. One thread.
class TlsChannel {
public:
    explicit TlsChannel(std::shared_ptr<const TlsContext> context);
    TlsChannel(const TlsChannel&) = delete;
    TlsChannel& operator=(const TlsChannel&) = delete;

    void feed(std::string_view arrived);

    /// Goes on with the handshake as far as what was fed allows; true once it is over. Failure is
    /// final: BadMessage, or Refused for a certificate that is not taken.
    [[nodiscard]] Result<bool> shake_hands();

    /// After the handshake: a text that both ends of this connection have, and no other one has. An
    /// end that proves it speaks to the other end itself, and not to a relay.
    [[nodiscard]] std::string binding() const;

    /// After the handshake: reads at most `size` bytes; 0: no more have arrived. Failure is final.
    [[nodiscard]] Result<std::size_t> read(char* to, std::size_t size);

    /// After the handshake.
    [[nodiscard]] Result<void> write(std::string_view text);

    /// The last word of this end.
    void say_end();

    [[nodiscard]] bool has_output() const;
    [[nodiscard]] std::string take_output();

private:
    struct Free {
        void operator()(SSL* ssl) const { ::SSL_free(ssl); }
    };

    [[nodiscard]] Error take_error() const;
    [[nodiscard]] Result<bool> check_name() const;

    const std::shared_ptr<const TlsContext> context_;
    std::unique_ptr<SSL, Free> ssl_;
    BIO* arrived_ = nullptr;  ///< owned by ssl_
    BIO* output_ = nullptr;   ///< owned by ssl_
};

}  // namespace ddprun::rdzv
