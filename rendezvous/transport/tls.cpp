#include "rendezvous/transport/tls.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>

#include "base/check.hpp"

namespace ddprun::rdzv {

namespace {

/// The oldest error that OpenSSL keeps for this thread, as text; the others are forgotten.
std::string reason() {
    const unsigned long code = ::ERR_get_error();
    ::ERR_clear_error();
    const char* const text = code == 0 ? nullptr : ::ERR_reason_error_string(code);
    return text == nullptr ? "unknown reason" : text;
}

/// A key that needs a passphrase would ask for it on a terminal that no user watches.
int no_passphrase(char* /*to*/, int /*size*/, int /*writes*/, void* /*data*/) {
    return -1;
}

Error unreadable(const char* flag, const std::string& file, const char* what) {
    return {ErrorCode::InvalidArgument,
            fmt::format("{} {} cannot be used: {}; it must hold {} in PEM", flag, file, reason(),
                        what)};
}

/// The other end has said so by an alert.
bool is_about_our_certificate(unsigned long code) {
    if (ERR_GET_LIB(code) != ERR_LIB_SSL) {
        return false;
    }
    switch (ERR_GET_REASON(code) - SSL_AD_REASON_OFFSET) {
        case SSL_AD_BAD_CERTIFICATE:
        case SSL_AD_UNSUPPORTED_CERTIFICATE:
        case SSL_AD_CERTIFICATE_REVOKED:
        case SSL_AD_CERTIFICATE_EXPIRED:
        case SSL_AD_CERTIFICATE_UNKNOWN:
        case SSL_AD_UNKNOWN_CA:
        case SSL_AD_DECRYPT_ERROR:  // signed by an authority of the same name
        case SSL_AD_ACCESS_DENIED:
        case SSL_AD_CERTIFICATE_REQUIRED:
            return true;
        default:
            return false;
    }
}

Error missing(const char* text) {
    return {ErrorCode::InvalidArgument, text};
}

}  // namespace

// --------------------------------------------------------------------------------------- context

Result<std::shared_ptr<TlsContext>> TlsContext::load(const TlsFiles& files) {
    if (files.cert.empty() != files.key.empty()) {
        return missing("--tls-cert and --tls-key belong together; give both or none");
    }
    ::ERR_clear_error();
    std::shared_ptr<TlsContext> made(new TlsContext);  // tidy: allow new: private constructor
    made->context_.reset(::SSL_CTX_new(::TLS_method()));
    SSL_CTX* const context = made->context_.get();
    DDP_CHECK(context != nullptr);
    DDP_CHECK(::SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1);
    ::SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
    // Nothing is resumed: connections last.
    ::SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    DDP_CHECK(::SSL_CTX_set_num_tickets(context, 0) == 1);
    ::SSL_CTX_set_default_passwd_cb(context, no_passphrase);
    if (!files.cert.empty()) {
        if (::SSL_CTX_use_certificate_chain_file(context, files.cert.c_str()) != 1) {
            return unreadable("--tls-cert", files.cert, "a certificate");
        }
        if (::SSL_CTX_use_PrivateKey_file(context, files.key.c_str(), SSL_FILETYPE_PEM) != 1) {
            return unreadable("--tls-key", files.key,
                              "the private key of the certificate, without a passphrase,");
        }
    }
    if (!files.ca.empty() &&
        ::SSL_CTX_load_verify_locations(context, files.ca.c_str(), nullptr) != 1) {
        return unreadable("--tls-ca", files.ca, "certificates of authorities");
    }
    made->cert_ = files.cert;
    return made;
}

Result<std::shared_ptr<const TlsContext>> TlsContext::for_rendezvous(const TlsFiles& files) {
    if (files.cert.empty() || files.key.empty()) {
        return missing("a rendezvous with TLS needs --tls-cert and --tls-key");
    }
    Result<std::shared_ptr<TlsContext>> made = load(files);
    if (!made) {
        return made.error();
    }
    if (!files.ca.empty()) {
        ::SSL_CTX_set_verify((*made)->context_.get(),
                             SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
    }
    return std::shared_ptr<const TlsContext>(*std::move(made));
}

Result<std::shared_ptr<TlsContext>> TlsContext::make_client(const TlsFiles& files) {
    if (files.ca.empty()) {
        return missing(
            "TLS needs --tls-ca, the authority that signed the certificate of the rendezvous");
    }
    Result<std::shared_ptr<TlsContext>> made = load(files);
    if (!made) {
        return made.error();
    }
    (*made)->is_client_ = true;
    ::SSL_CTX_set_verify((*made)->context_.get(), SSL_VERIFY_PEER, nullptr);
    return made;
}

Result<std::shared_ptr<const TlsContext>> TlsContext::for_client(const TlsFiles& files,
                                                                 std::vector<std::string> names) {
    Result<std::shared_ptr<TlsContext>> made = make_client(files);
    if (!made) {
        return made.error();
    }
    (*made)->names_ = std::move(names);
    return std::shared_ptr<const TlsContext>(*std::move(made));
}

Result<std::shared_ptr<const TlsContext>> TlsContext::for_partner(const TlsFiles& files) {
    Result<std::shared_ptr<TlsContext>> made = make_client(files);
    if (!made) {
        return made.error();
    }
    (*made)->has_any_name_ = true;
    return std::shared_ptr<const TlsContext>(*std::move(made));
}

// --------------------------------------------------------------------------------------- channel

TlsChannel::TlsChannel(std::shared_ptr<const TlsContext> context)
    : context_(std::move(context)), ssl_(::SSL_new(context_->context_.get())) {
    arrived_ = ::BIO_new(::BIO_s_mem());
    output_ = ::BIO_new(::BIO_s_mem());
    DDP_CHECK(ssl_ != nullptr && arrived_ != nullptr && output_ != nullptr);
    // Nothing there is no end: that comes from the socket.
    BIO_set_mem_eof_return(arrived_, -1);
    ::SSL_set_bio(ssl_.get(), arrived_, output_);
    if (context_->is_client_) {
        ::SSL_set_connect_state(ssl_.get());
    } else {
        ::SSL_set_accept_state(ssl_.get());
    }
}

void TlsChannel::feed(std::string_view arrived) {
    const int size = static_cast<int>(arrived.size());
    DDP_CHECK(::BIO_write(arrived_, arrived.data(), size) == size, size);
}

Result<bool> TlsChannel::shake_hands() {
    ::ERR_clear_error();
    const int result = ::SSL_do_handshake(ssl_.get());
    if (result == 1) {
        return check_name();
    }
    if (::SSL_get_error(ssl_.get(), result) == SSL_ERROR_WANT_READ) {
        return false;
    }
    return take_error();
}

Result<bool> TlsChannel::check_name() const {
    if (!context_->is_client_ || context_->has_any_name_) {
        return true;
    }
    X509* const shown = ::SSL_get0_peer_certificate(ssl_.get());
    const auto is_for = [shown](const std::string& name) {
        return ::X509_check_ip_asc(shown, name.c_str(), 0) == 1 ||
               ::X509_check_host(shown, name.data(), name.size(), 0, nullptr) == 1;
    };
    const std::vector<std::string>& names = context_->names_;
    if (shown != nullptr && std::any_of(names.begin(), names.end(), is_for)) {
        return true;
    }
    return Error{ErrorCode::Refused,
                 fmt::format("its certificate is not for {}: the certificate's subject alternative "
                             "names must hold what --rdzv-endpoint names",
                             fmt::join(names, " or "))};
}

std::string TlsChannel::binding() const {
    constexpr std::string_view kLabel = "EXPORTER-Channel-Binding";  // RFC 9266
    std::array<unsigned char, 32> bytes{};
    DDP_CHECK(::SSL_export_keying_material(ssl_.get(), bytes.data(), bytes.size(), kLabel.data(),
                                           kLabel.size(), nullptr, 0, 1) == 1);
    return fmt::format("{:02x}", fmt::join(bytes, ""));
}

Result<std::size_t> TlsChannel::read(char* to, std::size_t size) {
    ::ERR_clear_error();
    std::size_t count = 0;
    const int result = ::SSL_read_ex(ssl_.get(), to, size, &count);
    if (result == 1) {
        return count;
    }
    // The peer's last word (SSL_ERROR_ZERO_RETURN) is not its end: the end of the stream is, with
    // or without that word, because a process that is killed says nothing.
    const int kind = ::SSL_get_error(ssl_.get(), result);
    if (kind == SSL_ERROR_WANT_READ || kind == SSL_ERROR_ZERO_RETURN) {
        return std::size_t{0};
    }
    return take_error();
}

Result<void> TlsChannel::write(std::string_view text) {
    if (text.empty()) {
        return {};
    }
    ::ERR_clear_error();
    std::size_t count = 0;
    const int result = ::SSL_write_ex(ssl_.get(), text.data(), text.size(), &count);
    if (result == 1) {
        return {};
    }
    return take_error();
}

void TlsChannel::say_end() {
    ::ERR_clear_error();
    ::SSL_shutdown(ssl_.get());
}

Error TlsChannel::take_error() const {
    const unsigned long code = ::ERR_peek_error();
    const std::string text = reason();
    if (const long verified = ::SSL_get_verify_result(ssl_.get()); verified != X509_V_OK) {
        return {ErrorCode::Refused,
                fmt::format("its certificate is not trusted ({}): --tls-ca must hold the authority "
                            "that signed it",
                            ::X509_verify_cert_error_string(verified))};
    }
    if (is_about_our_certificate(code)) {
        return {ErrorCode::Refused,
                fmt::format("it does not take our certificate ({}): {}", text,
                            context_->cert_.empty()
                                ? "give --tls-cert and --tls-key"
                                : fmt::format("an authority in its --tls-ca must have signed {}",
                                              context_->cert_))};
    }
    if (ERR_GET_LIB(code) == ERR_LIB_SSL &&
        ERR_GET_REASON(code) == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE) {
        return {ErrorCode::Refused, "it shows no certificate, and --tls-ca asks for one"};
    }
    return {ErrorCode::BadMessage, fmt::format("it does not speak TLS 1.3 as we do: {}", text)};
}

bool TlsChannel::has_output() const {
    return ::BIO_ctrl_pending(output_) > 0;
}

std::string TlsChannel::take_output() {
    std::string bytes(::BIO_ctrl_pending(output_), '\0');
    if (!bytes.empty()) {
        const int size = static_cast<int>(bytes.size());
        DDP_CHECK(::BIO_read(output_, bytes.data(), size) == size, size);
    }
    return bytes;
}

}  // namespace ddprun::rdzv
