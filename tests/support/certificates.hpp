#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include "tests/support/catch.hpp"

namespace ddprun::test {

/// Makes the PEM files that tests of TLS need.
class Authority {
public:
    explicit Authority(const std::string& name) : key_(::EVP_EC_gen("P-256"), ::EVP_PKEY_free) {
        cert_ = make(name, key_.get(), "", true, 3600);
    }
    Authority(const Authority&) = delete;
    Authority& operator=(const Authority&) = delete;

    void write_cert(const std::string& path) const { write(path, cert_.get(), nullptr); }

    /// A certificate for `names`, as in "DNS:localhost,IP:127.0.0.1", and its key.
    void issue(const std::string& cert_path, const std::string& key_path, const std::string& names,
               long lifetime_s = 3600) const {
        const Key key(::EVP_EC_gen("P-256"), ::EVP_PKEY_free);
        const Cert cert = make("node", key.get(), names, false, lifetime_s);
        write(cert_path, cert.get(), nullptr);
        write(key_path, nullptr, key.get());
    }

private:
    using Key = std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)>;
    using Cert = std::unique_ptr<X509, void (*)(X509*)>;

    static void extend(X509* cert, X509* issuer, int kind, const std::string& value) {
        X509V3_CTX context;
        X509V3_set_ctx_nodb(&context);
        ::X509V3_set_ctx(&context, issuer, cert, nullptr, nullptr, 0);
        X509_EXTENSION* const extension =
            ::X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str());
        REQUIRE(extension != nullptr);
        REQUIRE(::X509_add_ext(cert, extension, -1) == 1);
        ::X509_EXTENSION_free(extension);
    }

    [[nodiscard]] Cert make(const std::string& name, EVP_PKEY* key, const std::string& names,
                            bool is_authority, long lifetime_s) const {
        static long serial = 1;
        Cert cert(::X509_new(), ::X509_free);
        ::X509_set_version(cert.get(), 2);
        ::ASN1_INTEGER_set(::X509_get_serialNumber(cert.get()), serial++);
        ::X509_gmtime_adj(::X509_getm_notBefore(cert.get()), lifetime_s > 0 ? -60 : -7200);
        ::X509_gmtime_adj(::X509_getm_notAfter(cert.get()), lifetime_s);
        ::X509_set_pubkey(cert.get(), key);
        ::X509_NAME_add_entry_by_txt(::X509_get_subject_name(cert.get()), "CN", MBSTRING_ASC,
                                     reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1,
                                     0);
        X509* const issuer = is_authority ? cert.get() : cert_.get();
        ::X509_set_issuer_name(cert.get(), ::X509_get_subject_name(issuer));
        extend(cert.get(), issuer, NID_basic_constraints,
               is_authority ? "critical,CA:TRUE" : "critical,CA:FALSE");
        if (!names.empty()) {
            extend(cert.get(), issuer, NID_subject_alt_name, names);
        }
        REQUIRE(::X509_sign(cert.get(), key_.get(), ::EVP_sha256()) > 0);
        return cert;
    }

    static void write(const std::string& path, X509* cert, EVP_PKEY* key) {
        const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "we"),
                                                         std::fclose);
        REQUIRE(file != nullptr);
        const int written = cert != nullptr ? ::PEM_write_X509(file.get(), cert)
                                            : ::PEM_write_PrivateKey(file.get(), key, nullptr,
                                                                     nullptr, 0, nullptr, nullptr);
        REQUIRE(written == 1);
    }

    Key key_;
    Cert cert_{nullptr, ::X509_free};
};

}  // namespace ddprun::test
