// Goal: HTTP on the daemon's port: what it answers, to whom, and that agents share the port.

#include <memory>
#include <string>
#include <vector>

#include <boost/asio/connect.hpp>

#include "tests/process/server_fixture.hpp"

namespace ddprun::rdzv {
namespace {

/// Asks, and takes the answer up to the end of the connection.
class Asker {
public:
    Asker(boost::asio::io_context& io, std::uint16_t port, std::string request)
        : socket_(io), request_(std::move(request)) {
        socket_.connect({boost::asio::ip::address_v4::loopback(), port});
        boost::asio::async_write(socket_, boost::asio::buffer(request_),
                                 [](boost::system::error_code, std::size_t) {});
        read();
    }
    Asker(const Asker&) = delete;
    Asker& operator=(const Asker&) = delete;

    [[nodiscard]] bool is_done() const { return is_done_; }
    [[nodiscard]] const std::string& answer() const { return answer_; }

private:
    void read() {
        socket_.async_read_some(boost::asio::buffer(piece_),
                                [this](boost::system::error_code end, std::size_t count) {
                                    answer_.append(piece_.data(), count);
                                    if (end) {
                                        is_done_ = true;
                                    } else {
                                        read();
                                    }
                                });
    }

    boost::asio::ip::tcp::socket socket_;
    std::string request_;
    std::array<char, 4096> piece_{};
    std::string answer_;
    bool is_done_ = false;
};

std::string ask(boost::asio::io_context& io, std::uint16_t port, const std::string& target,
                const std::string& headers = "Host: localhost\r\n", const char* method = "GET") {
    const Asker asker(io, port,
                      std::string(method) + " " + target + " HTTP/1.1\r\n" + headers +
                          "Connection: close\r\n\r\n");
    run_until(io, [&] { return asker.is_done(); });
    return asker.answer();
}

TEST_CASE("a daemon answers HTTP on the port where agents join") {
    boost::asio::io_context io;
    const Daemon daemon(io);
    CHECK(ask(io, daemon.port, "/events").find("there is no job yet") != std::string::npos);
    Agent llama(io, {.port = daemon.port, .job = "llama"});
    run_until(io, [&] { return llama.last<Start>() != nullptr; });

    const std::string status = ask(io, daemon.port, "/status");
    CHECK(status.starts_with("HTTP/1.1 200 OK\r\n"));
    CHECK(status.find("X-Content-Type-Options: nosniff\r\n") != std::string::npos);
    CHECK(status.find(R"("job":"llama")") != std::string::npos);
    CHECK(status.find(R"("phase":"running")") != std::string::npos);
    const std::string events = ask(io, daemon.port, "/events");
    CHECK(events.find(R"("event":"joined")") < events.find(R"("event":"formed")"));
    CHECK(ask(io, daemon.port, "/events?job=bert").starts_with("HTTP/1.1 404 "));
    CHECK(ask(io, daemon.port, "/metrics").find("without prometheus-cpp") != std::string::npos);
    CHECK(ask(io, daemon.port, "/status?job=bert").starts_with("HTTP/1.1 404 "));

    Agent bert(io, {.port = daemon.port, .job = "bert"});
    run_until(io, [&] { return bert.last<Start>() != nullptr; });
    CHECK(ask(io, daemon.port, "/events").find("there are 2 jobs") != std::string::npos);
    CHECK(ask(io, daemon.port, "/events?job=bert").starts_with("HTTP/1.1 200 "));
    const std::string one = ask(io, daemon.port, "/status?job=bert");
    CHECK(one.find(R"("job":"bert")") != std::string::npos);
    CHECK(one.find(R"("job":"llama")") == std::string::npos);
}

TEST_CASE("another site's page, a rebound name and a wrong token are refused on the port") {
    boost::asio::io_context io;
    const Daemon daemon(io);
    const auto refused = [&](const std::string& headers) {
        return ask(io, daemon.port, "/status", headers).starts_with("HTTP/1.1 403 ");
    };
    CHECK(refused("Host: evil.example\r\n"));
    CHECK(refused(""));
    CHECK(refused("Host: localhost\r\nOrigin: http://evil.example\r\n"));
    CHECK(refused("Host: localhost\r\nAuthorization: Bearer 00\r\n"));
    CHECK_FALSE(refused("Host: 127.0.0.1:29400\r\n"));
    CHECK(ask(io, daemon.port, "/status", "Host: localhost\r\n", "POST")
              .starts_with("HTTP/1.1 405 "));
    CHECK(
        ask(io, daemon.port, "/status", "Host: localhost\r\nX: " + std::string(9000, 'x') + "\r\n")
            .empty());
}

/// The token that an operator with secret_of(byte) sends.
std::string digits_of(unsigned char byte) {
    return order_token_of(secret_of(byte));
}

/// Posts an order; `headers` as they are.
std::string post(boost::asio::io_context& io, std::uint16_t port, const std::string& target,
                 const std::string& headers, const std::string& body) {
    const Asker asker(io, port,
                      "POST " + target + " HTTP/1.1\r\nHost: localhost\r\n" + headers +
                          "Connection: close\r\nContent-Length: " + std::to_string(body.size()) +
                          "\r\n\r\n" + body);
    run_until(io, [&] { return asker.is_done(); });
    return asker.answer();
}

const std::string kJson = "Content-Type: application/json\r\n";

TEST_CASE("an operator's order over HTTP is carried out and answered with its event") {
    boost::asio::io_context io;
    const Daemon daemon(io, {.operator_secret = secret_of(9)});
    Agent llama(io, {.port = daemon.port, .job = "llama"});
    run_until(io, [&] { return llama.last<Start>() != nullptr; });
    const std::string operators = "Authorization: Bearer " + digits_of(9) + "\r\n" + kJson;
    const auto order = [&](const std::string& target, const std::string& body) {
        return post(io, daemon.port, target, operators, body);
    };
    const std::string held =
        order("/jobs/llama/hold", R"({"for_s":600,"by":"alice@page","node":null})");
    CHECK(held.starts_with("HTTP/1.1 202 Accepted\r\n"));
    const std::string events = ask(io, daemon.port, "/events?job=llama");
    const std::size_t at = events.find(R"("event":"operator")");
    REQUIRE(at != std::string::npos);
    CHECK(events.find(R"("action":"hold")", at) != std::string::npos);
    CHECK(events.find(R"("for_s":600)", at) != std::string::npos);
    CHECK(events.find(R"("by":"alice@page")", at) != std::string::npos);
    CHECK(events.find(R"("from":"127.0.0.1 port )", at) != std::string::npos);
    const std::size_t line = events.rfind('{', at);
    const std::string number = held.substr(held.find(R"("event":)") + 8, 3);
    CHECK(events.find(R"("seq":)" + number.substr(0, number.find(',')), line) < at);

    CHECK(order("/jobs/llama/release", "").starts_with("HTTP/1.1 202 "));
    CHECK(order("/jobs/llama/release", "{}").starts_with("HTTP/1.1 409 "));
    CHECK(order("/jobs/llama/drain", R"({"node":"nobody"})").starts_with("HTTP/1.1 404 "));
    CHECK(order("/jobs/bert/restart", "{}").starts_with("HTTP/1.1 404 "));
    CHECK(order("/jobs/llama/dance", "{}").starts_with("HTTP/1.1 404 "));
    CHECK(order("/jobs/llama", "{}").starts_with("HTTP/1.1 404 "));
    CHECK(order("/jobs/llama/hold", "{}").starts_with("HTTP/1.1 400 "));
    CHECK(order("/jobs/llama/shrink", R"({"nodes":99})").starts_with("HTTP/1.1 400 "));
    for (const char* const body : {"[]", "{", "7", R"({"for_s":"1"})", R"({"for_s":-1})",
                                   R"({"node":7})", R"({"nodes":1e9})", R"({"by":"\u0007"})"}) {
        CAPTURE(body);
        CHECK(order("/jobs/llama/hold", body).starts_with("HTTP/1.1 400 "));
    }
    CHECK(order("/jobs/llama/hold", std::string(5000, ' ')).empty());
    CHECK(llama.last<Stop>() == nullptr);
    CHECK(order("/jobs/llama/restart", "{}").starts_with("HTTP/1.1 202 "));
    run_until(io, [&] { return llama.last<Stop>() != nullptr; });
    // An operator that may give orders may look, too.
    CHECK(ask(io, daemon.port, "/status", "Host: localhost\r\n" + operators)
              .starts_with("HTTP/1.1 200 "));
}

TEST_CASE("an order over HTTP needs the operators' token, JSON, and no page of another site") {
    boost::asio::io_context io;
    const Daemon with(io, {.operator_secret = secret_of(9)});
    const Daemon without(io);
    Agent one(io, {.port = with.port, .job = "llama"});
    Agent other(io, {.port = without.port, .job = "llama"});
    run_until(io, [&] { return one.last<Start>() && other.last<Start>(); });
    const std::string right = "Authorization: Bearer " + digits_of(9) + "\r\n";
    const auto answer = [&](std::uint16_t port, const std::string& headers) {
        return post(io, port, "/jobs/llama/restart", headers, "{}");
    };
    const std::string unauthorized = answer(with.port, kJson);
    CHECK(unauthorized.starts_with("HTTP/1.1 401 "));
    CHECK(unauthorized.find("WWW-Authenticate: Bearer\r\n") != std::string::npos);
    CHECK(unauthorized.find("--operator-secret-file") != std::string::npos);
    for (const auto secret : {static_cast<unsigned char>(1), static_cast<unsigned char>(8)}) {
        CHECK(answer(with.port, "Authorization: Bearer " + digits_of(secret) + "\r\n" + kJson)
                  .starts_with("HTTP/1.1 401 "));
    }
    // The secret is the key of the handshake: it does not travel.
    const std::string secret =
        answer(with.port, "Authorization: Bearer " + http_token_of(secret_of(9)) + "\r\n" + kJson);
    CHECK(secret.starts_with("HTTP/1.1 401 "));
    CHECK(secret.find("that is the operators' secret itself") != std::string::npos);
    CHECK(secret.find("`ddpctl token ") != std::string::npos);
    CHECK(ask(io, with.port, "/status",
              "Host: localhost\r\nAuthorization: Bearer " + http_token_of(secret_of(9)) + "\r\n")
              .find("that is the operators' secret itself") != std::string::npos);
    CHECK(answer(without.port, right + kJson).starts_with("HTTP/1.1 403 "));
    CHECK(answer(without.port, right + kJson).find("takes no orders") != std::string::npos);
    CHECK(answer(with.port, right).starts_with("HTTP/1.1 400 "));
    CHECK(answer(with.port, right + "Content-Type: text/plain\r\n").starts_with("HTTP/1.1 400 "));
    CHECK(answer(with.port, right + kJson + "Origin: http://evil.example\r\n")
              .starts_with("HTTP/1.1 403 "));
    CHECK(answer(with.port, right + kJson + "Sec-Fetch-Site: cross-site\r\n")
              .starts_with("HTTP/1.1 403 "));
    CHECK(ask(io, with.port, "/jobs/llama/restart", "Host: localhost\r\n" + right)
              .starts_with("HTTP/1.1 404 "));
    CHECK(one.last<Stop>() == nullptr);
    CHECK(other.last<Stop>() == nullptr);
    CHECK(answer(with.port, right + kJson + "Origin: http://localhost\r\n")
              .starts_with("HTTP/1.1 202 "));
    for (const Daemon* const daemon : {&with, &without}) {
        for (const std::string& line : daemon->log) {
            CHECK(line.find(digits_of(9).substr(0, 16)) == std::string::npos);
        }
    }
}

TEST_CASE("the daemon that does not lead says who does") {
    boost::asio::io_context io;
    const Daemon daemon(io, {.is_one_of_several = true, .operator_secret = secret_of(9)});
    CHECK(ask(io, daemon.port, "/status").find("no daemon leads") != std::string::npos);
    daemon.server->follow("10.0.0.7:29400");
    const std::string status = ask(io, daemon.port, "/status");
    CHECK(status.starts_with("HTTP/1.1 503 "));
    CHECK(status.find("10.0.0.7:29400") != std::string::npos);
    CHECK(ask(io, daemon.port, "/events").starts_with("HTTP/1.1 503 "));
    const std::string operators = "Authorization: Bearer " + digits_of(9) + "\r\n" + kJson;
    CHECK(post(io, daemon.port, "/jobs/llama/stop", operators, "{}").starts_with("HTTP/1.1 503 "));
}

TEST_CASE("strangers who say one byte each keep no watcher out") {
    boost::asio::io_context io;
    Daemon::Options options;
    options.limits.watchers_max = 8;
    options.limits.half_open_per_source_max = 8;
    options.limits.half_open_grace = Milliseconds(0);
    const Daemon daemon(io, options);
    std::vector<std::unique_ptr<Stranger>> strangers;
    // Elsewhere, and then at the address that the watcher has, too.
    for (const char* const from : {"127.0.0.2", "127.0.0.1"}) {
        for (std::size_t i = 0; i < options.limits.watchers_max; ++i) {
            strangers.push_back(std::make_unique<Stranger>(io, daemon.port, from));
            strangers.back()->say("G");
        }
        run_until(io, [&] { return daemon.server->connection_count() == 0; });
        CHECK(ask(io, daemon.port, "/status").starts_with("HTTP/1.1 200 "));
    }
    CHECK_FALSE(strangers.front()->is_closed);
    run_until(io, [&] { return strangers[options.limits.watchers_max]->is_closed; });
    CHECK(daemon.has_logged("it had not proved itself when newer connections came"));
}

TEST_CASE("above the limit of watchers nobody follows, and whoever asks once is answered") {
    boost::asio::io_context io;
    Daemon::Options options;
    options.limits.watchers_max = 2;
    const Daemon daemon(io, options);
    Agent llama(io, {.port = daemon.port, .job = "llama"});
    run_until(io, [&] { return llama.last<Start>() != nullptr; });
    const std::string follows = "GET /events?follow=1 HTTP/1.1\r\nHost: localhost\r\n\r\n";
    const Asker one(io, daemon.port, follows);
    const Asker two(io, daemon.port, follows);
    run_until(io, [&] {
        return one.answer().find("formed") != std::string::npos &&
               two.answer().find("formed") != std::string::npos;
    });
    const Asker three(io, daemon.port, follows);
    run_until(io, [&] { return three.is_done(); });
    CHECK(three.answer().starts_with("HTTP/1.1 503 "));
    CHECK(three.answer().find("2 watch over HTTP already") != std::string::npos);
    const Asker status(io, daemon.port, "GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n");
    run_until(io, [&] { return status.is_done(); });  // though it did not ask for the end
    CHECK(status.answer().starts_with("HTTP/1.1 200 "));
    Agent bert(io, {.port = daemon.port, .job = "bert"});
    run_until(io, [&] { return bert.last<Start>() != nullptr; });
    CHECK_FALSE(one.is_done());

    // A follower hears the verdict, and that is the end.
    for (const int local_rank : {0, 1}) {
        llama.client->send(
            WorkerFinished{.generation = Generation(1), .local_rank = LocalRank(local_rank)});
    }
    run_until(io, [&] { return one.is_done() && two.is_done(); });
    CHECK(one.answer().find(R"("event":"verdict")") != std::string::npos);
}

TEST_CASE("a node is asked how far its ranks are while somebody looks, and who follows hears it") {
    boost::asio::io_context io;
    Daemon::Options options;
    options.limits.lease = Milliseconds(600000);  // no node beats here
    const Daemon daemon(io, options);
    Agent llama(io, {.port = daemon.port, .job = "llama"});
    run_until(io, [&] { return llama.last<Start>() != nullptr; });
    CHECK(llama.last<Watch>() == nullptr);
    CHECK(llama.last<Accepted>()->hears_moments);
    const std::string follows =
        "GET /events HTTP/1.1\r\nHost: localhost\r\n"
        "Accept: text/event-stream\r\n\r\n";
    const Asker follower(io, daemon.port, follows);
    run_until(io, [&] { return llama.last<Watch>() != nullptr; });
    CHECK(llama.last<Watch>()->interval >= WatchLimits().progress_interval);
    CHECK(llama.last<Watch>()->lasts <= WatchLimits().watched_for);

    Progress progress{.generation = Generation(1), .ranks = {}};
    for (const int local_rank : {0, 1}) {
        progress.ranks.push_back({.local_rank = LocalRank(local_rank),
                                  .phase = RankPhase::Training,
                                  .step = 41,
                                  .step_ns = 500'000'000,
                                  .own_ns = local_rank == 0 ? 490'000'000u : 200'000'000u});
    }
    llama.client->send(progress);
    run_until(io, [&] {
        return follower.answer().find(R"(data: {"event":"progress")") != std::string::npos;
    });
    CHECK(follower.answer().find(R"("slowest":{"rank":0,)") != std::string::npos);
    const std::string status = ask(io, daemon.port, "/status");
    CHECK(status.find(R"("rank":1,"node")") != std::string::npos);
    CHECK(status.find(R"("phase":"training","step":41,"steps_per_s":2)") != std::string::npos);
    CHECK(status.find(R"("slowest":{"rank":0)") != std::string::npos);
    CHECK(status.find(R"("time":{"whole_ms")") != std::string::npos);
    CHECK(ask(io, daemon.port, "/events").find("progress") == std::string::npos);

    // A report of another generation, or of more ranks than the node has, is not believed.
    progress.generation = Generation(7);
    llama.client->send(progress);
    llama.client->send(Reached{.generation = Generation(1),
                               .moments = {{.what = Moment::FirstStep,
                                            .last = LocalRank(1),
                                            .age = Milliseconds(0),
                                            .step = 40}}});
    run_until(
        io, [&] { return follower.answer().find(R"("event":"first_step")") != std::string::npos; });
    const std::string last = ask(io, daemon.port, "/status");
    CHECK(last.find(R"("step":41)") != std::string::npos);

    // The time that its workers spent on checkpoints is no event, and counts at once. Their
    // training has just begun: the checkpoints cannot have taken longer.
    CHECK(last.find(R"("checkpointing_ms":0,)") != std::string::npos);
    llama.client->send(
        Reached{.generation = Generation(1), .moments = {}, .checkpointing = Milliseconds(600000)});
    std::string spent = last;
    run_until(io, [&] {
        spent = ask(io, daemon.port, "/status");
        return spent.find(R"("checkpointing_ms":0,)") == std::string::npos;
    });
    CHECK(spent.find(R"("training_ms":0,)") != std::string::npos);
}

TEST_CASE("an estimate of one node is told of the whole job, marked, and never after a report") {
    boost::asio::io_context io;
    Daemon::Options options;
    options.limits.lease = Milliseconds(600000);  // no node beats here
    const Daemon daemon(io, options);
    Agent one(io, {.port = daemon.port, .job = "llama", .node = "a", .nodes = 2});
    Agent two(io, {.port = daemon.port, .job = "llama", .node = "b", .nodes = 2});
    run_until(io, [&] { return one.last<Start>() != nullptr && two.last<Start>() != nullptr; });
    const auto estimate = [](Moment what) {
        return ReachedMoment{.what = what, .last = LocalRank(0), .is_estimated = true};
    };
    two.client->send(Reached{.generation = Generation(1),
                             .moments = {{.what = Moment::Main, .last = LocalRank(0)}}});
    one.client->send(
        Reached{.generation = Generation(1),
                .moments = {estimate(Moment::GroupReady), estimate(Moment::FirstStep)}});
    std::string events;
    run_until(io, [&] {
        events = ask(io, daemon.port, "/events");
        return events.find("first_step") != std::string::npos &&
               events.find("group_ready") != std::string::npos;
    });
    const std::size_t at = events.find(R"("event":"group_ready")");
    const std::string line = events.substr(at, events.find('\n', at) - at);
    CHECK(line.find(R"("estimated":true)") != std::string::npos);
    CHECK(line.find(R"("rank")") == std::string::npos);
    CHECK(events.find(R"("event":"main")") == std::string::npos);
}

TEST_CASE("a node that does not know of being watched is not asked") {
    boost::asio::io_context io;
    const Daemon daemon(io);
    Agent::Options older{.port = daemon.port, .job = "llama"};
    older.tells_progress = false;
    Agent llama(io, older);
    Agent bert(io, {.port = daemon.port, .job = "bert"});
    run_until(io, [&] { return llama.last<Start>() != nullptr && bert.last<Start>() != nullptr; });
    CHECK(ask(io, daemon.port, "/status").find("llama") != std::string::npos);
    run_until(io, [&] { return bert.last<Watch>() != nullptr; });
    CHECK(llama.last<Watch>() == nullptr);
}

}  // namespace
}  // namespace ddprun::rdzv
