// Over HTTP, the server answers this machine's programs and callers that show the token, and no
// other site's page.

#include "rendezvous/http/http_access.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/http/http_request.hpp"
#include "rendezvous/http/page_files.hpp"
#include "rendezvous/http/request_head.hpp"
#include "tests/support/catch.hpp"

using namespace ddprun;
using namespace ddprun::rdzv;

namespace {

HttpAccess access_with_token() {
    JobSecret::Bytes bytes{};
    bytes.fill(0xab);
    return {.token = JobSecret(bytes, "token"), .hostname = "gpu-01"};
}

std::string digits(const char* byte) {
    std::string text;
    for (std::size_t i = 0; i < JobSecret::kBytes; ++i) {
        text += byte;
    }
    return text;
}

bool is_answered(const HttpAccess& access, const HttpCaller& caller) {
    const Result<void> admitted = admit(access, caller);
    if (!admitted) {
        CHECK(admitted.error().code == ErrorCode::PermissionDenied);
        CHECK_FALSE(admitted.error().what.empty());
    }
    return admitted.has_value();
}

}  // namespace

TEST_CASE("programs of this machine are answered, if they mean this machine") {
    const HttpAccess access{.token = std::nullopt, .hostname = "gpu-01"};
    for (const char* const host : {"127.0.0.1", "127.0.0.1:29400", "10.0.0.7:29400", "[::1]:29400",
                                   "localhost", "localhost:29400", "gpu-01:29400"}) {
        CAPTURE(host);
        CHECK(is_answered(access, {.is_on_this_machine = true, .host = host}));
        CHECK_FALSE(is_answered(access, {.is_on_this_machine = false, .host = host}));
    }
    for (const char* const host :
         {"", "evil.example", "evil.example:29400", "127.0.0.1.evil.example", "localhost@evil",
          "a b", "gpu-01.evil.example", "[::1", "127.0.0.1:29400/", "localhost evil"}) {
        CAPTURE(host);
        CHECK_FALSE(is_answered(access, {.is_on_this_machine = true, .host = host}));
    }
}

TEST_CASE("a page of another site is not answered") {
    const HttpAccess access{.token = std::nullopt, .hostname = "gpu-01"};
    const auto from = [&](const char* origin) {
        return is_answered(
            access, {.is_on_this_machine = true, .host = "localhost:29400", .origin = origin});
    };
    CHECK(from("http://localhost:29400"));
    CHECK_FALSE(from("http://localhost:8080"));
    CHECK_FALSE(from("https://localhost:29400"));
    CHECK_FALSE(from("http://evil.example"));
    CHECK_FALSE(from("null"));
}

/// Judges a GET of `target` with these headers; returns nothing if the GET is answered.
std::optional<ErrorCode> refusal_of(const char* target,
                                    const std::vector<std::pair<const char*, const char*>>& headers,
                                    std::optional<bool> is_here = true) {
    namespace http = boost::beast::http;
    http::request_header<http::fields> head;
    head.method(http::verb::get);
    head.target(target);
    for (const auto& [name, value] : headers) {
        head.set(name, value);
    }
    const Result<WatchRequest> request =
        judge(head, {.is_on_this_machine = is_here}, {.token = std::nullopt, .hostname = "gpu-01"});
    return request ? std::optional<ErrorCode>() : std::optional(request.error().code);
}

TEST_CASE("an image or script of another site is not answered, though it has no Origin") {
    for (const char* const target : {"/stacks", "/logs", "/status", "/events", "/metrics"}) {
        CAPTURE(target);
        for (const char* const site : {"cross-site", "same-site", "", "something new"}) {
            CAPTURE(site);
            const bool is_answered_there = std::string_view(site).empty();
            for (const std::optional<bool> is_here : {std::optional(true), std::optional<bool>()}) {
                CHECK((refusal_of(target, {{"Host", "localhost:29400"}, {"Sec-Fetch-Site", site}},
                                  is_here) == std::nullopt) == is_answered_there);
            }
        }
        for (const char* const site : {"none", "same-origin"}) {
            CHECK(refusal_of(target, {{"Host", "localhost"}, {"Sec-Fetch-Site", site}}) ==
                  std::nullopt);
        }
        CHECK(refusal_of(target, {{"Host", "127.0.0.1:29400"}}) == std::nullopt);
    }
    // A link to the page works; it has nothing of any job.
    CHECK(refusal_of("/", {{"Host", "localhost"}, {"Sec-Fetch-Site", "cross-site"}}) ==
          std::nullopt);
}

TEST_CASE("where browsers do not say whose page asks, nodes are not asked") {
    for (const char* const host : {"gpu-01:29400", "10.0.0.7:29400", "[fe80::1]:29400"}) {
        CAPTURE(host);
        CHECK(refusal_of("/stacks", {{"Host", host}}) == ErrorCode::PermissionDenied);
        CHECK(refusal_of("/logs", {{"Host", host}}) == ErrorCode::PermissionDenied);
        CHECK(refusal_of("/status", {{"Host", host}}) == std::nullopt);
        CHECK(refusal_of("/metrics", {{"Host", host}}) == std::nullopt);
        CHECK(refusal_of("/stacks", {{"Host", host}, {"Sec-Fetch-Site", "none"}}) == std::nullopt);
    }
    for (const char* const host : {"localhost:8080", "127.0.0.1", "127.0.0.2:29400", "[::1]"}) {
        CAPTURE(host);
        CHECK(refusal_of("/stacks", {{"Host", host}}) == std::nullopt);
    }
    CHECK(refusal_of("/stacks", {}, std::nullopt) == std::nullopt);
}

TEST_CASE("who shows the token is answered wherever it is") {
    const HttpAccess access = access_with_token();
    const auto shows = [&](const std::string& authorization) {
        return is_answered(access, {.is_on_this_machine = false,
                                    .host = "head.cluster.example",
                                    .authorization = authorization});
    };
    CHECK(shows("Bearer " + digits("ab")));
    CHECK(shows("Bearer " + digits("AB")));
    CHECK_FALSE(shows("Bearer " + digits("ac")));
    CHECK_FALSE(shows("Bearer " + digits("ab") + "0"));
    CHECK_FALSE(shows("Bearer "));
    CHECK_FALSE(shows("Basic " + digits("ab")));
    CHECK_FALSE(shows(digits("ab")));
    // A wrong one is told so on this machine, too.
    CHECK_FALSE(is_answered(access, {.is_on_this_machine = true,
                                     .host = "localhost",
                                     .authorization = "Bearer " + digits("00")}));
    CHECK_FALSE(is_answered({}, {.is_on_this_machine = false,
                                 .host = "localhost",
                                 .authorization = "Bearer " + digits("00")}));
}

TEST_CASE("an operator's token is derived from the secret, which itself is none") {
    JobSecret::Bytes bytes{};
    bytes.fill(0xab);
    const JobSecret secret(bytes, "operators");
    const HttpAccess access{.token = std::nullopt, .operator_secret = secret, .hostname = {}};
    const std::string token = order_token_of(secret);
    // printf 'ddprun http orders\0' | openssl dgst -sha256 -mac hmac -macopt hexkey:abab…ab
    CHECK(token == "599b88ea98f39a26afe560fa48218e18398559e78a5aa870f6bfc7301dafa937");
    const auto says = [&](const std::string& digits) {
        const Result<void> admitted = admit(access, {.authorization = "Bearer " + digits});
        return admitted ? std::string() : admitted.error().what;
    };
    CHECK(says(token).empty());
    CHECK(says(digits("ab")).find("that is the operators' secret itself") == 0);
    CHECK(says(digits("AB")).find("that is the operators' secret itself") == 0);
    CHECK(says(digits("cd")).find("the token is not that of") == 0);
}

TEST_CASE("where TLS is spoken other machines are answered in nothing else") {
    namespace http = boost::beast::http;
    HttpAccess access = access_with_token();
    access.operator_secret = access.token;
    access.has_tls = true;
    http::request_header<http::fields> head;
    head.method(http::verb::get);
    head.set(http::field::host, "head:29400");
    const auto says = [&](const char* target, const HttpWay& way) {
        head.target(target);
        const Result<WatchRequest> request = judge(head, way, access);
        return request ? std::string() : request.error().what;
    };
    const HttpWay in_clear{.is_on_this_machine = false};
    const HttpWay hidden{.is_on_this_machine = false, .is_hidden = true};
    const std::string asks_for_https = "HTTP in clear with its own machine only: ask https://head:";
    // The server refuses the page in clear too, because a user would type a token into it.
    for (const char* const target : {"/", "/status", "/nothing"}) {
        CHECK(says(target, in_clear).find(asks_for_https) != std::string::npos);
        CHECK(says(target, in_clear).find("make another") == std::string::npos);
    }
    CHECK(says("/", hidden).empty());
    CHECK_FALSE(says("/status", hidden).empty());
    head.set(http::field::authorization, "Bearer " + digits("ab"));
    CHECK(says("/status", hidden).empty());
    CHECK(says("/status", in_clear).find("in clear: make another") != std::string::npos);
    head.set(http::field::authorization, "Bearer " + order_token_of(*access.operator_secret));
    head.set(http::field::content_type, "application/json");
    head.method(http::verb::post);
    head.target("/jobs/llama/stop");
    CHECK(judge_order(head, hidden, access, Limits()));
    const Result<OperatorOrder> order = judge_order(head, in_clear, access, Limits());
    CHECK(order.error().what.find(asks_for_https) != std::string::npos);
}

TEST_CASE("what is asked for is a path, a job and where to begin") {
    const auto ask = [](const char* target, const char* accept = "", const char* last = "") {
        return parse_watch_request("GET", target, accept, last);
    };
    const auto events = ask("/events?job=a%20b%2Fc&from=3&follow=1");
    REQUIRE(events.has_value());
    CHECK(events->what == WatchRequest::What::Events);
    CHECK(events->job == "a b/c");
    CHECK(events->from == 3);
    CHECK(events->follows);
    CHECK_FALSE(events->is_sse);
    const auto stream = ask("/events?job=llama", "text/event-stream", "41");
    REQUIRE(stream.has_value());
    CHECK(stream->is_sse);
    CHECK(stream->follows);
    CHECK(stream->from == 42);
    const auto status = ask("/status?job=llama");
    REQUIRE(status.has_value());
    CHECK(status->what == WatchRequest::What::Status);
    CHECK(status->job == "llama");
    const auto metrics = ask("/metrics?nodes=1");
    REQUIRE(metrics.has_value());
    CHECK(metrics->what == WatchRequest::What::Metrics);
    CHECK(metrics->figures == FiguresOf{.nodes = true, .ranks = false});
    CHECK(ask("/metrics")->figures == FiguresOf{});
    CHECK(ask("/metrics?ranks=1&nodes=0")->figures == FiguresOf{.nodes = false, .ranks = true});
    const auto logs = ask("/logs?job=llama&rank=3&generation=2&lines=10&grep=a%7Cb&follow=1");
    REQUIRE(logs.has_value());
    CHECK(logs->what == WatchRequest::What::Workers);
    CHECK(logs->read ==
          ReadWorkers{
              .rank = 3, .generation = 2, .pattern = "a|b", .last_lines = 10, .follows = true});
    const auto stacks = ask("/stacks?rank=3");
    REQUIRE(stacks.has_value());
    CHECK(stacks->read == ReadWorkers{.what = WorkersText::Stacks, .rank = 3});

    const auto why_not = [&](const char* target) {
        const auto asked = ask(target);
        return asked ? std::optional<ErrorCode>() : std::optional(asked.error().code);
    };
    CHECK(why_not("/page") == ErrorCode::NotFound);
    CHECK(why_not("/index.html") == ErrorCode::NotFound);
    CHECK(why_not("/page.js/") == ErrorCode::NotFound);
    CHECK(why_not("/events/../status") == ErrorCode::NotFound);
    CHECK(why_not("/event%00s") == ErrorCode::NotFound);
    CHECK(why_not("//") == ErrorCode::NotFound);
    CHECK(why_not("%zz") == ErrorCode::NotFound);
    CHECK(why_not("/events?from=x") == ErrorCode::InvalidArgument);
    CHECK(why_not("/events?from=-1") == ErrorCode::InvalidArgument);
    CHECK(why_not("/events?follow=2") == ErrorCode::InvalidArgument);
    CHECK(why_not("/metrics?ranks=2") == ErrorCode::InvalidArgument);
    CHECK(why_not("/status?ranks=1") == ErrorCode::InvalidArgument);
    CHECK(why_not("/metrics?job=a") == ErrorCode::InvalidArgument);
    CHECK(why_not("/status?nodes=1") == ErrorCode::InvalidArgument);
    CHECK(why_not("/status?from=1") == ErrorCode::InvalidArgument);
    CHECK(why_not("/logs?rank=-1") == ErrorCode::InvalidArgument);
    CHECK(why_not("/logs?lines=99999999999") == ErrorCode::InvalidArgument);
    CHECK(why_not("/logs?generation=0") == ErrorCode::InvalidArgument);
    CHECK(why_not("/logs?grep=%00") == ErrorCode::InvalidArgument);
    CHECK(why_not("/stacks?follow=1") == ErrorCode::InvalidArgument);
    CHECK(why_not("/status?rank=1") == ErrorCode::InvalidArgument);
    CHECK(parse_watch_request("POST", "/status", "", "").error().code == ErrorCode::Refused);
}

TEST_CASE("the page is small, and whatever it names is there") {
    constexpr std::size_t kBytesMax = 150000;
    std::size_t bytes = 0;
    for (const PageFile& file : page_files()) {
        CAPTURE(file.path);
        CHECK_FALSE(file.bytes.empty());
        bytes += file.bytes.size();
        const auto asked = parse_watch_request("GET", file.path, "", "");
        REQUIRE(asked.has_value());
        CHECK(asked->what == WatchRequest::What::Page);
        CHECK(asked->file->bytes == file.bytes);
        // A style or script in the document is refused by its own policy.
        CHECK(file.bytes.find("style=") == std::string_view::npos);
        CHECK(file.bytes.find("<script>") == std::string_view::npos);
        CHECK(file.bytes.find("innerHTML") == std::string_view::npos);
        // "from './ask.js'", "href=\"page.css\""
        for (const char* const before : {"from './", "href=\"", "src=\""}) {
            for (std::size_t at = file.bytes.find(before); at != file.bytes.npos;
                 at = file.bytes.find(before, at + 1)) {
                const std::size_t from = at + std::string_view(before).size();
                const std::size_t end = file.bytes.find_first_of("'\"", from);
                const std::string name = "/" + std::string(file.bytes.substr(from, end - from));
                CAPTURE(name);
                CHECK((name[1] == '#' || parse_watch_request("GET", name, "", "").has_value()));
            }
        }
    }
    CHECK(page_files().front().path == "/");
    CHECK(bytes <= kBytesMax);
}

TEST_CASE("the page is for who is answered, and where a token can be typed in, for everybody") {
    namespace http = boost::beast::http;
    const auto judged = [](const char* target, bool is_here, const HttpAccess& access) {
        http::request_header<http::fields> head;
        head.method(http::verb::get);
        head.target(target);
        head.set(http::field::host, "head.cluster.example:29400");
        const Result<WatchRequest> request = judge(head, {.is_on_this_machine = is_here}, access);
        return request ? std::optional<ErrorCode>() : std::optional(request.error().code);
    };
    const HttpAccess named{.token = std::nullopt, .hostname = "head.cluster.example"};
    CHECK(judged("/", true, named) == std::nullopt);
    CHECK(judged("/", true, {}) == ErrorCode::PermissionDenied);
    CHECK(judged("/", false, named) == ErrorCode::PermissionDenied);
    CHECK(judged("/", false, access_with_token()) == std::nullopt);
    CHECK(judged("/page.js", false, access_with_token()) == std::nullopt);
    CHECK(judged("/status", false, access_with_token()) == ErrorCode::PermissionDenied);
    CHECK(judged("/nothing", false, access_with_token()) == ErrorCode::PermissionDenied);
}
