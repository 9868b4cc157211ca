// Goal: TLS around the protocol: who is let in by which certificates, what both sides are told
// when it does not fit, and that nothing of the protocol changes inside it. Method: a real daemon
// and real agents on one loop, certificates made on the spot.

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/write.hpp>

#include "rendezvous/http/page_files.hpp"
#include "rendezvous/server/session.hpp"
#include "rendezvous/transport/tls.hpp"
#include "tests/process/security_relay.hpp"
#include "tests/process/server_fixture.hpp"
#include "tests/support/certificates.hpp"
#include "tests/support/cluster.hpp"
#include "tests/support/store_requests.hpp"

namespace ddprun::rdzv {
namespace {

using Context = std::shared_ptr<const TlsContext>;

/// An authority, and a certificate of it for this machine.
struct Pki {
    Pki() : authority("ours") {
        authority.write_cert(dir / "ca.pem");
        authority.issue(dir / "cert.pem", dir / "key.pem", "DNS:localhost,IP:127.0.0.1");
    }

    [[nodiscard]] TlsFiles files(bool has_cert, bool has_ca) const {
        return {.cert = has_cert ? dir / "cert.pem" : "",
                .key = has_cert ? dir / "key.pem" : "",
                .ca = has_ca ? dir / "ca.pem" : ""};
    }

    [[nodiscard]] Context daemon(bool is_mutual) const {
        Result<Context> made = TlsContext::for_rendezvous(files(true, is_mutual));
        REQUIRE(made);
        return *made;
    }
    [[nodiscard]] Context agent(bool has_cert = false,
                                const std::string& name = "127.0.0.1") const {
        Result<Context> made = TlsContext::for_client(files(has_cert, true), {name});
        REQUIRE(made);
        return *made;
    }

    test::TempDir dir;
    test::Authority authority;
};

/// Asks over HTTPS and takes the answer up to the end of the connection.
class HiddenAsker {
public:
    HiddenAsker(boost::asio::io_context& io, std::uint16_t port, const Context& context,
                std::string request, std::size_t piece = 16384)
        : channel_(context), stranger_(io, port), request_(std::move(request)), piece_(piece) {}

    /// Does what has become possible.
    void go_on() {
        const std::string arrived = stranger_.heard.substr(fed_);
        fed_ += arrived.size();
        channel_.feed(arrived);
        if (!is_shaken_) {
            const Result<bool> is_over = channel_.shake_hands();
            has_failed_ = !is_over;
            is_shaken_ = is_over && *is_over;
            for (std::size_t at = 0; is_shaken_ && at < request_.size(); at += piece_) {
                REQUIRE(channel_.write(request_.substr(at, piece_)));
            }
        }
        char bytes[4096];
        while (is_shaken_ && !has_failed_) {
            const Result<std::size_t> count = channel_.read(bytes, sizeof(bytes));
            has_failed_ = !count;
            if (has_failed_ || *count == 0) {
                break;
            }
            answer_.append(bytes, *count);
        }
        if (channel_.has_output() && !stranger_.is_closed) {
            stranger_.say(channel_.take_output());
        }
    }

    void hang_up() { stranger_.socket.close(); }

    [[nodiscard]] bool is_done() const { return stranger_.is_closed; }
    [[nodiscard]] const std::string& answer() const { return answer_; }

private:
    TlsChannel channel_;
    Stranger stranger_;
    std::string request_;
    std::size_t piece_;
    std::size_t fed_ = 0;
    bool is_shaken_ = false;
    bool has_failed_ = false;
    std::string answer_;
};

std::string ask_hidden(boost::asio::io_context& io, std::uint16_t port, const Context& context,
                       const std::string& request, std::size_t piece = 16384) {
    HiddenAsker asker(io, port, context, request, piece);
    run_until(io, [&] {
        asker.go_on();
        return asker.is_done();
    });
    return asker.answer();
}

std::string get(const std::string& target, const std::string& headers = {}) {
    return "GET " + target + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + headers +
           "\r\n";
}

TEST_CASE("where agents must speak TLS the port answers HTTP inside it, too") {
    const Pki pki;
    boost::asio::io_context io;
    const Daemon daemon(io, {.tls = pki.daemon(false), .operator_secret = secret_of(9)});
    Agent agent(io, {.port = daemon.port, .job = "llama", .tls = pki.agent()});
    run_until(io, [&] { return agent.last<Start>() != nullptr; });
    const auto ask = [&](const std::string& request, std::size_t piece = 16384) {
        return ask_hidden(io, daemon.port, pki.agent(), request, piece);
    };
    const std::string status = ask(get("/status"));
    CHECK(status.starts_with("HTTP/1.1 200 OK\r\n"));
    CHECK(status.find(R"("job":"llama")") != std::string::npos);
    CHECK(ask(get("/status"), 1).starts_with("HTTP/1.1 200 OK\r\n"));  // a record for each byte
    for (const PageFile& file : page_files()) {
        CHECK(ask(get(std::string(file.path))).ends_with(file.bytes));  // some need several records
    }
    CHECK(ask(get("/status", "Origin: https://localhost\r\n")).starts_with("HTTP/1.1 200 "));
    CHECK(ask(get("/status", "Origin: http://localhost\r\n")).starts_with("HTTP/1.1 403 "));
    CHECK(ask("no HTTP at all\r\n\r\n").empty());
    CHECK(daemon.has_logged("it is no ddprun agent"));
    const std::string order =
        "POST /jobs/llama/restart HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        "Content-Type: application/json\r\nContent-Length: 2\r\nAuthorization: Bearer " +
        order_token_of(secret_of(9)) + "\r\n\r\n{}";
    CHECK(ask(order).starts_with("HTTP/1.1 202 "));
    run_until(io, [&] { return agent.last<Stop>() != nullptr; });
    // Programs of this machine may ask in clear.
    Stranger plain(io, daemon.port);
    plain.say(get("/status"));
    run_until(io, [&] { return plain.is_closed; });
    CHECK(plain.heard.starts_with("HTTP/1.1 200 "));
}

TEST_CASE("HTTP inside TLS asks for a certificate where agents are asked for one") {
    const Pki pki;
    boost::asio::io_context io;
    const Daemon daemon(io, {.tls = pki.daemon(true)});
    CHECK(ask_hidden(io, daemon.port, pki.agent(false), get("/status")).empty());
    CHECK(daemon.has_logged("it shows no certificate, and --tls-ca asks for one"));
    CHECK(
        ask_hidden(io, daemon.port, pki.agent(true), get("/status")).starts_with("HTTP/1.1 200 "));
}

TEST_CASE("who follows inside TLS hears what comes, and his place is free once he has gone") {
    const Pki pki;
    boost::asio::io_context io;
    Daemon::Options options{.tls = pki.daemon(false)};
    options.limits.watchers_max = 1;
    const Daemon daemon(io, options);
    Agent one(io, {.port = daemon.port, .job = "llama", .nodes = 2, .tls = pki.agent()});
    const std::string follow = "GET /events?follow=1 HTTP/1.1\r\nHost: localhost\r\n\r\n";
    run_until(io, [&] { return one.last<Accepted>() != nullptr; });
    HiddenAsker follower(io, daemon.port, pki.agent(), follow);
    const auto has_heard = [&](const char* what) {
        follower.go_on();
        return follower.answer().find(what) != std::string::npos;
    };
    run_until(io, [&] { return has_heard("\"joined\""); });
    CHECK_FALSE(follower.is_done());
    CHECK(ask_hidden(io, daemon.port, pki.agent(), follow).starts_with("HTTP/1.1 503 "));
    Agent two(io,
              {.port = daemon.port, .job = "llama", .node = "n1", .nodes = 2, .tls = pki.agent()});
    run_until(io, [&] { return has_heard("\"formed\""); });
    follower.hang_up();
    std::string events;
    while (!events.starts_with("HTTP/1.1 200 ")) {
        events = ask_hidden(io, daemon.port, pki.agent(), get("/events"));
    }
}

TEST_CASE("where agents must speak TLS the store on the port is still open to its clients") {
    const Pki pki;
    boost::asio::io_context io;
    const Daemon daemon(io, {.serves_tcpstore = true, .tls = pki.daemon(true)});
    Stranger client(io, daemon.port);
    client.say(store_test::validate() + store_test::ping(7));
    run_until(io, [&] { return client.heard == store_test::nonce(7) || client.is_closed; });
    REQUIRE_FALSE(client.is_closed);
    Agent open(io, {.port = daemon.port});
    run_until(io, [&] { return open.is_down_for_good; });
    Agent agent(io, {.port = daemon.port, .tls = pki.agent(true)});
    run_until(io, [&] { return agent.last<Start>() != nullptr; });
}

TEST_CASE("agents join, beat and end through TLS as without it, and nothing is readable") {
    const Pki pki;
    boost::asio::io_context io;
    Daemon daemon(io, {.exits_when_idle = true, .tls = pki.daemon(false)});
    Relay relay(io, daemon.port);
    Agent agent(io, {.port = relay.port(), .job = "llama", .tls = pki.agent()});
    run_until(io, [&] { return agent.last<Start>() != nullptr; });
    REQUIRE(relay.from_agent.front() == kTlsByte);
    for (const std::string* heard : {&relay.from_agent, &relay.from_daemon}) {
        REQUIRE(heard->find("llama") == std::string::npos);
        REQUIRE(heard->find("DDPR") == std::string::npos);
        REQUIRE(heard->find("\"type\"") == std::string::npos);
    }
    for (std::uint64_t i = 1; i <= 50; ++i) {
        agent.client->send(Beat{.sequence = i});
    }
    run_until(
        io, [&] { return agent.last<Acknowledge>() && agent.last<Acknowledge>()->sequence == 50; });
    for (int i = 0; i < 2; ++i) {
        agent.client->send(WorkerFinished{.generation = Generation(1), .local_rank = LocalRank(i)});
    }
    run_until(io, [&] { return agent.last<Verdict>() != nullptr; });
    bool is_stopped = false;
    agent.client->send(Goodbye{});
    agent.client->stop([&] { is_stopped = true; });
    run_until(io, [&] { return is_stopped && daemon.has_ended; });
    REQUIRE(agent.downs.empty());
}

TEST_CASE("messages far larger than a TLS record pass whole") {
    const Pki pki;
    boost::asio::io_context io;
    const Daemon daemon(io, {.tls = pki.daemon(false)});
    Agent agent(io, {.port = daemon.port, .tls = pki.agent()});
    run_until(io, [&] { return agent.last<Start>() != nullptr; });
    Evidence evidence{.exit_code = 17};
    evidence.stderr_tail = std::string(Limits().stderr_tail_bytes_max, 'e');
    evidence.error_file = std::string(Limits().error_file_bytes_max, 'f');
    agent.client->send(WorkerFailed{
        .generation = Generation(1), .local_rank = LocalRank(0), .evidence = evidence});
    run_until(io, [&] { return agent.last<Stop>() != nullptr; });
    REQUIRE(agent.downs.empty());
}

TEST_CASE("a daemon that was given an authority lets in who shows a certificate of it") {
    const Pki pki;
    boost::asio::io_context io;
    const Daemon daemon(io, {.tls = pki.daemon(true)});
    const Agent with(io, {.port = daemon.port, .tls = pki.agent(true)});
    const Agent without(io, {.port = daemon.port, .job = "bert", .tls = pki.agent(false)});
    run_until(io, [&] { return with.last<Start>() && !without.downs.empty(); });
    REQUIRE(without.ups == 0);
    REQUIRE(without.is_down_for_good);
    REQUIRE(without.downs[0].find("it does not take our certificate") != std::string::npos);
    REQUIRE(without.downs[0].find("give --tls-cert and --tls-key") != std::string::npos);
    REQUIRE(daemon.has_logged("it shows no certificate, and --tls-ca asks for one"));
    REQUIRE(daemon.server->job_count() == 1);
}

TEST_CASE("a certificate of another authority is taken by neither side") {
    const Pki ours;
    const Pki theirs;
    boost::asio::io_context io;
    const Daemon daemon(io, {.tls = ours.daemon(true)});
    const Agent doubting(io, {.port = daemon.port, .tls = theirs.agent(true)});
    run_until(io, [&] { return !doubting.downs.empty(); });
    REQUIRE(doubting.is_down_for_good);
    REQUIRE(doubting.downs[0].find("its certificate is not trusted") != std::string::npos);
    // One that trusts us, and shows what we do not trust.
    const Result<Context> mixed = TlsContext::for_client(
        {.cert = theirs.dir / "cert.pem", .key = theirs.dir / "key.pem", .ca = ours.dir / "ca.pem"},
        {"127.0.0.1"});
    REQUIRE(mixed);
    const Agent strange(io, {.port = daemon.port, .tls = *mixed});
    run_until(io, [&] { return !strange.downs.empty(); });
    REQUIRE(strange.is_down_for_good);
    REQUIRE(strange.downs[0].find("it does not take our certificate") != std::string::npos);
    REQUIRE(daemon.server->job_count() == 0);
}

TEST_CASE("a certificate must be for the host that the user named, and of today") {
    const Pki pki;
    boost::asio::io_context io;
    const Daemon daemon(io, {.tls = pki.daemon(false)});
    const Agent by_name(io, {.port = daemon.port, .tls = pki.agent(false, "localhost")});
    const Agent elsewhere(io, {.port = daemon.port, .job = "b", .tls = pki.agent(false, "head")});
    run_until(io, [&] { return by_name.last<Start>() && !elsewhere.downs.empty(); });
    REQUIRE(elsewhere.is_down_for_good);
    REQUIRE(elsewhere.downs[0].find("its certificate is not for head") != std::string::npos);
    const Pki old;
    old.authority.issue(old.dir / "cert.pem", old.dir / "key.pem", "IP:127.0.0.1", -3600);
    const Daemon expired(io, {.tls = old.daemon(false)});
    const Agent late(io, {.port = expired.port, .tls = old.agent()});
    run_until(io, [&] { return !late.downs.empty(); });
    REQUIRE(late.downs[0].find("certificate has expired") != std::string::npos);
}

TEST_CASE("with TLS on one side only both sides say what to change") {
    const Pki pki;
    boost::asio::io_context io;
    const Daemon hidden(io, {.tls = pki.daemon(false)});
    const Daemon plain(io);
    const Agent open(io, {.port = hidden.port});
    const Agent shy(io, {.port = plain.port, .tls = pki.agent()});
    run_until(io, [&] { return !open.downs.empty() && !shy.downs.empty(); });
    REQUIRE(open.is_down_for_good);
    REQUIRE(open.downs[0] == "the rendezvous at 127.0.0.1:" + std::to_string(hidden.port) +
                                 " asks for TLS; give --tls-ca FILE with the authority that signed "
                                 "its certificate");
    REQUIRE(hidden.has_logged("it was started without --tls-ca, we speak TLS only"));
    REQUIRE(shy.is_down_for_good);
    REQUIRE(shy.downs[0] ==
            "no TLS with the rendezvous at 127.0.0.1:" + std::to_string(plain.port) +
                ": it was started without TLS; start it with --tls-cert and "
                "--tls-key, or leave --tls-ca out here");
    REQUIRE(plain.has_logged("it speaks TLS, we were started without --tls-cert"));
    REQUIRE(hidden.server->job_count() + plain.server->job_count() == 0);
}

TEST_CASE("the secret counts inside TLS as without it") {
    const Pki pki;
    boost::asio::io_context io;
    const Daemon daemon(io, {.tls = pki.daemon(true)});
    const Agent agent(io, {.port = daemon.port, .secret = secret_of(2), .tls = pki.agent(true)});
    run_until(io, [&] { return !agent.downs.empty(); });
    REQUIRE(agent.is_down_for_good);
    REQUIRE(agent.downs[0].find("the secret of this node is not that of the rendezvous") == 0);
    REQUIRE(daemon.server->job_count() == 0);
}

TEST_CASE("strangers get no further in TLS, and no more of their bytes are read") {
    const Pki pki;
    boost::asio::io_context io;
    const Daemon daemon(io,
                        {.limits = {.hello_timeout = Milliseconds(200)}, .tls = pki.daemon(false)});
    Stranger silent(io, daemon.port);
    Stranger garbage(io, daemon.port);
    Stranger half(io, daemon.port);
    Stranger web(io, daemon.port);
    garbage.say(std::string("\x16\x03\x01\x02\x00", 5) + std::string(512, 'x'));
    half.say("\x16\x03\x01");
    web.say("GET / HTTP/1.1\r\n\r\n");
    run_until(io, [&] {
        return silent.is_closed && garbage.is_closed && half.is_closed && web.is_closed;
    });
    REQUIRE(web.heard.starts_with("HTTP/1.1 403 "));  // it did not say whom it means
    run_until(io, [&] { return daemon.server->connection_count() == 0; });
    // A real client of TLS that never says who it is.
    TlsChannel channel(pki.agent());
    Stranger chatty(io, daemon.port);
    REQUIRE_FALSE(*channel.shake_hands());
    chatty.say(channel.take_output());
    run_until(io, [&] { return !chatty.heard.empty() || chatty.is_closed; });
    REQUIRE_FALSE(chatty.is_closed);
    run_until(io, [&] { return chatty.is_closed; });
    REQUIRE(daemon.server->job_count() == 0);
}

TEST_CASE("before it has proved itself a peer in TLS is read only so far") {
    const Pki pki;
    boost::asio::io_context io;
    const Daemon daemon(
        io, {.limits = {.hello_timeout = Milliseconds(60000), .tls_hello_bytes_max = 2000},
             .tls = pki.daemon(false)});
    Stranger stranger(io, daemon.port);
    // The beginning of a record of the greatest size, which never ends.
    stranger.say(std::string("\x16\x03\x01\x3f\x00", 5) + std::string(4000, '\0'));
    run_until(io, [&] { return stranger.is_closed; });
    REQUIRE(daemon.has_logged("more than 2000 bytes of TLS before it has proved itself"));
    const Agent agent(io, {.port = daemon.port, .tls = pki.agent()});
    run_until(io, [&] { return agent.last<Start>() != nullptr; });
}

TEST_CASE("the death of a process that speaks TLS is noticed at once") {
    const Pki pki;
    boost::asio::io_context io;
    const Limits patient{.lease = Milliseconds(3600000)};
    const Daemon daemon(io, {.limits = patient, .tls = pki.daemon(false)});
    int has_read[2];
    REQUIRE(::pipe2(has_read, O_CLOEXEC) == 0);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        boost::asio::io_context own;
        const Agent agent(own, {.port = daemon.port, .node = "b", .nodes = 2, .tls = pki.agent()});
        while (agent.last<Start>() == nullptr) {
            own.run_one();
        }
        ::_exit(::write(has_read[1], "", 1) == 1 && ::pause() == 0 ? 0 : 1);
    }
    Agent agent(io, {.port = daemon.port, .node = "a", .nodes = 2, .tls = pki.agent()});
    run_until(io, [&] { return agent.last<Start>() != nullptr; });
    // Were something unread when it dies, the kernel would reset its connection: only a suspicion.
    boost::asio::posix::stream_descriptor reading(io, has_read[0]);
    bool is_readable = false;
    reading.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                       [&](boost::system::error_code failure) { is_readable = !failure; });
    run_until(io, [&] { return is_readable; });
    ::close(has_read[1]);
    REQUIRE(::kill(child, SIGKILL) == 0);
    run_until(io, [&] { return agent.last<Stop>() != nullptr; });
    REQUIRE(::waitpid(child, nullptr, 0) == child);
}

TEST_CASE("a client with TLS can be stopped at any moment") {
    const Pki pki;
    boost::asio::io_context io;
    const Daemon daemon(
        io, {.limits = {.hello_timeout = Milliseconds(60000)}, .tls = pki.daemon(false)});
    for (int steps = 0; steps < 40; ++steps) {
        Agent agent(io, {.port = daemon.port, .tls = pki.agent()});
        io.restart();
        for (int i = 0; i < steps; ++i) {
            io.poll_one();
        }
        bool is_stopped = false;
        agent.client->stop([&] { is_stopped = true; });
        run_until(io, [&] { return is_stopped; });
        REQUIRE(agent.downs.empty());
    }
    run_until(io, [&] { return daemon.server->connection_count() == 0; });
}

/// A call of greet(), which is over at once or waits for the peer.
struct Greeted {
    explicit Greeted(const Context& daemon)
        : session(ConnectionId(1), accepted(), Limits{}, "a peer",
                  RendezvousHandshake(secret_of(1), random_nonce(), std::nullopt), daemon) {}

    void begin() {
        boost::asio::co_spawn(
            io, greet(session, std::chrono::steady_clock::now() + std::chrono::seconds(10)),
            [this](std::exception_ptr, Result<void> how) {
                is_over = true;
                outcome = std::move(how);
            });
    }

    boost::asio::ip::tcp::socket accepted() {
        boost::asio::ip::tcp::acceptor acceptor(io, {boost::asio::ip::address_v4::loopback(), 0});
        peer.connect(acceptor.local_endpoint());
        return acceptor.accept();
    }

    boost::asio::io_context io;
    boost::asio::ip::tcp::socket peer{io};
    Session session;
    bool is_over = false;
    Result<void> outcome;
};

// Goal: a deadline, the end of the daemon or a newer connection may close one that is in its
// handshake while the last bytes of that are read already. Method: the last ones of TLS and the
// first ones of HTTP come together; it is closed after each number of the loop's handlers.
TEST_CASE("a connection that is closed at any moment of its TLS handshake is no watcher's") {
    const Pki pki;
    const Context daemon = pki.daemon(false);
    const Context client = pki.agent();
    bool was_over_before = false;
    for (int handlers = 0; !was_over_before; ++handlers) {
        Greeted greeted(daemon);
        greeted.begin();
        TlsChannel channel(client);
        REQUIRE(channel.shake_hands());
        const auto say = [&] {
            boost::asio::write(greeted.peer, boost::asio::buffer(channel.take_output()));
        };
        say();
        for (bool is_shaken = false; !is_shaken;) {
            greeted.io.poll();
            char bytes[4096];
            channel.feed({bytes, greeted.peer.read_some(boost::asio::buffer(bytes))});
            const Result<bool> is_through = channel.shake_hands();
            REQUIRE(is_through);
            is_shaken = *is_through;
        }
        REQUIRE(channel.write("GET "));
        say();
        for (int i = 0; i < handlers && !greeted.is_over; ++i) {
            greeted.io.run_one();
        }
        was_over_before = greeted.is_over;
        greeted.session.connection.close();
        greeted.io.run();
        const bool is_watcher = std::holds_alternative<Session::Watching>(greeted.session.state);
        CHECK(is_watcher == was_over_before);
        CHECK(greeted.outcome.has_value() == was_over_before);
    }
}

TEST_CASE("files that are no use for TLS are named with their flag") {
    const Pki pki;
    test::write_file(pki.dir / "junk", "junk\n");
    const auto text = [](const auto& made) { return made ? "" : made.error().what; };
    REQUIRE(text(TlsContext::for_rendezvous(pki.files(false, true))) ==
            "a rendezvous with TLS needs --tls-cert and --tls-key");
    REQUIRE(text(TlsContext::for_client(pki.files(true, false), {})) ==
            "TLS needs --tls-ca, the authority that signed the certificate of the rendezvous");
    TlsFiles files = pki.files(true, true);
    files.key = "";
    REQUIRE(text(TlsContext::for_client(files, {})) ==
            "--tls-cert and --tls-key belong together; give both or none");
    files = pki.files(true, true);
    files.cert = pki.dir / "missing";
    REQUIRE(text(TlsContext::for_client(files, {})).find("--tls-cert " + files.cert) == 0);
    files = pki.files(true, true);
    files.ca = pki.dir / "junk";
    REQUIRE(text(TlsContext::for_client(files, {})).find("--tls-ca " + files.ca) == 0);
    files = pki.files(true, true);
    const Pki other;
    files.key = other.dir / "key.pem";
    REQUIRE(text(TlsContext::for_rendezvous(files)).find("--tls-key " + files.key) == 0);
}

}  // namespace
}  // namespace ddprun::rdzv
