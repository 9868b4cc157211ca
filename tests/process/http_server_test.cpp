// Watchers of an HttpServer: what they get, and that none holds it up.

#include "rendezvous/http/http_server.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <future>
#include <string>
#include <thread>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "tests/support/catch.hpp"

using namespace ddprun;
using namespace ddprun::rdzv;

namespace {

constexpr const char* kAddress = "ddprun-http-server-test";

/// Without a path: the kernel forgets it with the socket.
sockaddr_un address_of_test(socklen_t& size) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string name = kAddress + std::to_string(::getpid());
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    return address;
}

const sockaddr* generic_of(const sockaddr_un& address) {
    return static_cast<const sockaddr*>(static_cast<const void*>(&address));
}

struct FakeRun final : Watched {
    explicit FakeRun(const Limits& limits) : log(std::make_shared<EventLog>(limits)) {}
    [[nodiscard]] Result<std::shared_ptr<const EventLog>> events(const std::string& job) override {
        if (!job.empty() && job != "llama") {
            return Error{ErrorCode::NotFound, "there is no job " + job};
        }
        return std::shared_ptr<const EventLog>(log);
    }
    [[nodiscard]] Result<MakeText> status(const std::string& job) override {
        return MakeText([name = job.empty() ? "llama" : job] {
            return fmt::format(R"({{"job":"{}"}})", name) + "\n";
        });
    }
    [[nodiscard]] Result<MakeText> metrics(FiguresOf extent, std::size_t watchers) override {
        return MakeText([extent, watchers] {
            return fmt::format("nodes {}\nwatchers {}\n", extent.nodes, watchers);
        });
    }

    [[nodiscard]] Result<std::uint64_t> read_workers(const std::string& /*job*/,
                                                     const ReadWorkers& /*question*/) override {
        return Error{ErrorCode::NotFound, "nobody's logs are here"};
    }
    [[nodiscard]] std::optional<std::string> take_read(std::uint64_t /*reading*/) override {
        return std::nullopt;
    }
    void end_reading(std::uint64_t /*reading*/) override {}
    void obey(const OperatorOrder& /*order*/, const std::string& /*from*/,
              OrderAnswer answer) override {
        answer(Error{ErrorCode::PermissionDenied, "no orders are taken here"});
    }

    std::shared_ptr<EventLog> log;
};

/// A server on a thread of its own.
class Served {
public:
    explicit Served(const Limits& limits = {}) : run_(limits), server_(io_, limits, run_) {
        socklen_t size = 0;
        const sockaddr_un address = address_of_test(size);
        UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        REQUIRE(::bind(socket.get(), generic_of(address), size) == 0);
        REQUIRE(::listen(socket.get(), SOMAXCONN) == 0);
        REQUIRE(server_.start(std::move(socket)));
        thread_ = std::thread([this] { io_.run(); });
    }
    Served(const Served&) = delete;
    Served& operator=(const Served&) = delete;
    ~Served() {
        stop();
        thread_.join();
    }

    /// The loop ends with it.
    void stop() {
        if (std::exchange(is_stopped_, true)) {
            return;
        }
        std::promise<void> stopped;
        boost::asio::post(io_, [&] { server_.stop([&] { stopped.set_value(); }); });
        stopped.get_future().wait();
    }

    void add(const std::string& text) {
        std::promise<void> added;
        boost::asio::post(io_, [&] {
            const Event event{.kind = EventKind::Notice, .fields = {{"text", text}}};
            run_.log->add(event, event.at, Milliseconds(0));
            server_.published();
            added.set_value();
        });
        added.get_future().wait();
    }

private:
    boost::asio::io_context io_{1};
    FakeRun run_;
    HttpServer server_;
    std::thread thread_;
    bool is_stopped_ = false;
};

/// A client that has sent `request`.
class Watcher {
public:
    explicit Watcher(const std::string& request)
        : socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        socklen_t size = 0;
        const sockaddr_un address = address_of_test(size);
        REQUIRE(::connect(socket_.get(), generic_of(address), size) == 0);
        // Refused already, it may be closed.
        (void)::send(socket_.get(), request.data(), request.size(), MSG_NOSIGNAL);
    }

    /// All up to `end`; empty: up to the end of the connection.
    std::string read_to(const std::string& end = {}) {
        char piece[4096];
        while (end.empty() || heard_.find(end) == std::string::npos) {
            const ssize_t count = ::recv(socket_.get(), piece, sizeof(piece), 0);
            if (count <= 0) {
                break;
            }
            heard_.append(piece, static_cast<std::size_t>(count));
        }
        return heard_;
    }

private:
    UniqueFd socket_;
    std::string heard_;
};

std::string answer_to(const std::string& request) {
    return Watcher(request).read_to();
}

bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("state and events are answered, anything else is said to be none of these") {
    Served served;
    served.add("one");
    served.add("two");
    const std::string status = answer_to("GET /status HTTP/1.0\r\n\r\n");
    CHECK(status.starts_with("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"));
    CHECK(status.ends_with("\r\n\r\n{\"job\":\"llama\"}\n"));
    const std::string all = answer_to("GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n");
    CHECK(has(all, "\"text\":\"one\""));
    CHECK(has(all, "\"text\":\"two\""));
    CHECK(all.ends_with("\r\n0\r\n\r\n"));
    const std::string later = answer_to("GET /events?from=2 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    CHECK_FALSE(has(later, "\"text\":\"one\""));
    CHECK(has(later, "\"text\":\"two\""));
    const std::string metrics = answer_to("GET /metrics?nodes=1 HTTP/1.0\r\n\r\n");
    CHECK(has(metrics, "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
    CHECK(metrics.ends_with("\r\n\r\nnodes true\nwatchers 1\n"));
    CHECK(has(answer_to("GET /page HTTP/1.0\r\n\r\n"), " 404 "));
    CHECK(has(answer_to("POST /status HTTP/1.0\r\n\r\n"), " 405 "));
    CHECK(has(answer_to("GET /events?from=x HTTP/1.0\r\n\r\n"), " 400 "));
    CHECK(answer_to("GET /status HTTP/1.1\r\nX: " + std::string(9000, 'x') + "\r\n\r\n").empty());
    CHECK(answer_to("no HTTP at all\r\n\r\n").empty());
}

TEST_CASE("a browser gets the page, which may load nothing but its own files") {
    const Served served;
    const std::string page = answer_to("GET / HTTP/1.0\r\n\r\n");
    CHECK(page.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n"));
    CHECK(has(page, "\r\nContent-Security-Policy: default-src 'none'; script-src 'self'; "));
    CHECK_FALSE(has(page, "unsafe"));
    CHECK(has(page, "frame-ancestors 'none'\r\n"));
    CHECK(has(page, "\r\nX-Content-Type-Options: nosniff\r\n"));
    CHECK(has(page, "\r\nReferrer-Policy: no-referrer\r\n"));
    CHECK(page.ends_with("</html>\n"));
    CHECK(has(answer_to("GET /page.js HTTP/1.0\r\n\r\n"), "Content-Type: text/javascript"));
    CHECK(has(answer_to("POST / HTTP/1.0\r\n\r\n"), " 405 "));
    // Behind a forwarded port a browser may be showing the page of another site.
    CHECK(has(answer_to("GET / HTTP/1.0\r\nHost: localhost:8080\r\n\r\n"), " 200 "));
    CHECK(has(answer_to("GET /status HTTP/1.0\r\nHost: evil.example\r\n\r\n"), " 403 "));
    CHECK(has(answer_to("GET /status HTTP/1.0\r\nHost: localhost\r\nOrigin: http://evil\r\n\r\n"),
              " 403 "));
}

TEST_CASE("who follows gets what comes, and the end once the run is over") {
    Served served;
    served.add("one");
    Watcher lines("GET /events?follow=1 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    Watcher browser(
        "GET /events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\nLast-Event-ID: "
        "1\r\n\r\n");
    CHECK(has(lines.read_to("one"), "Content-Type: application/x-ndjson"));
    CHECK(has(browser.read_to("\r\n\r\n"), "Content-Type: text/event-stream"));
    served.add("two");
    CHECK(has(lines.read_to("two"), "\"seq\":2"));
    CHECK(has(browser.read_to("two"), "id: 2\ndata: {\"v\":1,\"seq\":2,"));
    CHECK_FALSE(has(browser.read_to("two"), "\"seq\":1,"));
    const Watcher silent("");  // it has no business any more when the run ends
    served.stop();
    CHECK(lines.read_to().ends_with("\r\n0\r\n\r\n"));
}

TEST_CASE("who hangs up, or follows when all places are taken, costs the others nothing") {
    Limits limits;
    limits.watchers_max = 1;
    Served served(limits);
    served.add("one");
    {
        Watcher first("GET /events?follow=1 HTTP/1.1\r\nHost: localhost\r\n\r\n");
        REQUIRE(has(first.read_to("one"), "one"));
        CHECK(has(answer_to("GET /events?follow=1 HTTP/1.0\r\n\r\n"), " 503 "));
        CHECK(has(answer_to("GET /status HTTP/1.0\r\n\r\n"), "llama"));
    }
    // Its place is free again, as soon as it is seen to be gone.
    std::string events;
    while (!has(events, " 200 ")) {
        events = answer_to("GET /events HTTP/1.0\r\n\r\n");
    }
    CHECK(has(events, "one"));
}

TEST_CASE("a watcher that takes nothing is dropped once what it would get is not kept any more") {
    Limits limits;
    limits.events_kept_max = 64;
    Served served(limits);
    Watcher slow("GET /events?follow=1 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    REQUIRE(has(slow.read_to("\r\n\r\n"), "200 OK"));
    for (int i = 0; i < 2000; ++i) {
        served.add(std::string(3000, 'x'));
    }
    const std::string heard = slow.read_to();
    CHECK_FALSE(has(heard, "\"seq\":2000,"));
    CHECK_FALSE(heard.ends_with("\r\n0\r\n\r\n"));
}
