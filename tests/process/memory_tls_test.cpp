// Goal: with TLS two ddprun-memory programs show no byte of a checkpoint to the network, and only
// to a program with a certificate of the authority. Method: real programs, and a relay between
// them that keeps all that it hears.

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>

#include "rendezvous/transport/tls.hpp"
#include "rendezvous/wire/endpoint.hpp"
#include "tests/process/memory_node.hpp"
#include "tests/process/security_relay.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/certificates.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun;
using namespace ddprun::test;
using agent::MemoryOptions;
using rdzv::TlsChannel;
using rdzv::TlsContext;
using rdzv::TlsFiles;

namespace {

/// An authority, and a node's certificate of it, for a name that is no address.
struct MemoryPki {
    MemoryPki() {
        authority.write_cert(files.ca);
        authority.issue(files.cert, files.key, "DNS:node");
    }

    [[nodiscard]] MemoryOptions options(const TlsFiles& of) const {
        MemoryOptions options = with_secret(1);
        options.tls = of;
        return options;
    }

    TempDir dir;
    TlsFiles files{.cert = dir / "cert.pem", .key = dir / "key.pem", .ca = dir / "ca.pem"};
    Authority authority{"ours"};
};

/// Passes on what a program says to the one at `endpoint`, until it is destroyed.
class Tap {
public:
    explicit Tap(const std::string& endpoint)
        : relay_(io_, rdzv::parse_endpoint(endpoint)->port), thread_([this] { io_.run(); }) {}
    ~Tap() { stop(); }
    Tap(const Tap&) = delete;
    Tap& operator=(const Tap&) = delete;

    [[nodiscard]] std::string endpoint() const {
        return "127.0.0.1:" + std::to_string(relay_.port());
    }
    /// All bytes of both directions, and no more of them.
    [[nodiscard]] std::string heard() {
        stop();
        return relay_.from_agent + relay_.from_daemon;
    }

private:
    void stop() {
        io_.stop();
        if (thread_.joinable()) {
            thread_.join();
        }
    }

    boost::asio::io_context io_;
    rdzv::Relay relay_;
    std::thread thread_;
};

constexpr const char* kWeights = "weights that are nobody else's";

/// All that the network hears of a copy.
std::string heard_of_a_copy(const MemoryOptions& options) {
    const Node first(options, true);
    const Node second(options, true);
    Client partner(second, 1);
    Tap tap(partner.endpoint());
    Client worker(first, 0);
    worker.name_partner(tap.endpoint());
    CHECK(worker.write(1, "model", kWeights).note.empty());
    CHECK(partner.read(1, "model") == kWeights);
    return tap.heard();
}

/// Why a node with `left` has no copy at a node with `right`. The line names the partner.
std::string note_of(const MemoryOptions& left, const MemoryOptions& right) {
    const Node first(left, true);
    const Node second(right, true);
    Client partner(second, 1);
    Client worker(first, 0);
    worker.name_partner(partner.endpoint());
    std::string note = worker.write(1, "model", kWeights).note;
    CHECK(note.find(partner.endpoint()) != std::string::npos);
    CHECK(partner.list().empty());
    return note;
}

bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

/// The binding of a new connection, which both ends have.
std::string binding_of_new(const TlsFiles& files) {
    TlsChannel server(*TlsContext::for_rendezvous(files));
    TlsChannel client(*TlsContext::for_partner(files));
    bool is_over = false;
    while (!is_over) {
        const Result<bool> left = client.shake_hands();
        server.feed(client.take_output());
        const Result<bool> right = server.shake_hands();
        client.feed(server.take_output());
        REQUIRE((left.has_value() && right.has_value()));
        is_over = *left && *right;
    }
    CHECK(server.binding() == client.binding());
    return client.binding();
}

}  // namespace

TEST_CASE("with TLS the network hears no weights of a copy between partners") {
    const MemoryPki pki;
    CHECK(has(heard_of_a_copy(pki.options({})), kWeights));
    const std::string hidden = heard_of_a_copy(pki.options(pki.files));
    CHECK(hidden.size() > std::string(kWeights).size());
    CHECK_FALSE(has(hidden, kWeights));
    CHECK_FALSE(has(hidden, "model"));
}

TEST_CASE("large copies pass through TLS, and fetches do") {
    const MemoryPki pki;
    const Node first(pki.options(pki.files), true);
    const Node second(pki.options(pki.files), true);
    const std::string content = large_content();
    Client partner(second, 1);
    Client worker(first, 0);
    worker.name_partner(partner.endpoint());
    CHECK(worker.write(1, "model", content).note.empty());
    CHECK(partner.read(1, "model") == content);
}

TEST_CASE("a partner with a certificate of another authority gets no copy") {
    const MemoryPki pki;
    const MemoryPki others;
    const MemoryOptions ours = pki.options(pki.files);
    CHECK(has(note_of(ours, pki.options(others.files)), "its certificate is not trusted"));
    // The partner trusts both authorities here: it is this node's certificate that is wrong.
    TlsFiles wrong = others.files;
    wrong.ca = pki.files.ca;
    CHECK(has(note_of(pki.options(wrong), ours), "it does not take our certificate"));
}

TEST_CASE("a node with TLS and a partner without it say that they do not fit") {
    const MemoryPki pki;
    CHECK(has(note_of(pki.options(pki.files), pki.options({})), "no TLS with it"));
    CHECK(has(note_of(pki.options({}), pki.options(pki.files)), "has no copy"));
}

TEST_CASE("each TLS connection has a binding of its own, which both ends know") {
    const MemoryPki pki;
    CHECK(binding_of_new(pki.files) != binding_of_new(pki.files));
}
