// Goal: what people are told by --notify, whom, and that a slow or absent receiver is bounded.

#include <optional>
#include <string>
#include <variant>

#include "agent/contract/notify_target.hpp"
#include "agent/notify/notice_queue.hpp"
#include "rendezvous/events/event.hpp"
#include "tests/support/catch.hpp"

namespace ddprun::agent {
namespace {

using rdzv::Event;
using rdzv::EventKind;

Limits small() {
    Limits limits;
    limits.notices_waiting_max = 3;
    limits.notice_attempts_max = 3;
    limits.notice_pause = Milliseconds(1000);
    return limits;
}

constexpr Instant kStart{};

NotifyUrl url_of(const std::string& text) {
    return std::get<NotifyUrl>(*read_notify_target(text));
}

TEST_CASE("notices are delivered one after the other, in order") {
    NoticeQueue queue(small());
    CHECK_FALSE(queue.begin(kStart));
    queue.add("restart", "1");
    queue.add("verdict", "2");
    CHECK(queue.begin(kStart) == "1");
    CHECK_FALSE(queue.begin(kStart));
    CHECK(queue.ended(kStart, "").empty());
    CHECK(queue.begin(kStart) == "2");
    CHECK(queue.size() == 1);
    CHECK(queue.ended(kStart, "").empty());
    CHECK(queue.size() == 0);
    CHECK_FALSE(queue.next_deadline());
}

TEST_CASE("a notice is tried again after pauses that grow, and then given up") {
    NoticeQueue queue(small());
    queue.add("hang", "1");
    queue.add("verdict", "2");
    CHECK(queue.begin(kStart) == "1");
    CHECK(queue.ended(kStart, "HTTP status 500").empty());
    const Instant second = kStart + Milliseconds(1000);
    CHECK(queue.next_deadline() == second);
    CHECK_FALSE(queue.begin(second - Milliseconds(1)));
    CHECK(queue.begin(second) == "1");
    CHECK_FALSE(queue.next_deadline());
    CHECK(queue.ended(second, "HTTP status 500").empty());
    const Instant third = second + Milliseconds(2000);
    CHECK(queue.next_deadline() == third);
    CHECK(queue.begin(third) == "1");
    CHECK(queue.ended(third, "HTTP status 502") ==
          "the notice \"hang\" is lost: HTTP status 502 (3 attempts)");
    CHECK(queue.begin(third) == "2");
    CHECK(queue.ended(third, "").empty());
}

TEST_CASE(
    "the newest notices wait, with the one that is tried; how many were dropped is said once") {
    NoticeQueue queue(small());
    queue.add("spare", "1");
    CHECK(queue.begin(kStart) == "1");
    for (const char* line : {"2", "3", "4", "5"}) {
        queue.add("spare", line);
    }
    CHECK(queue.size() == 3);
    CHECK(queue.ended(kStart, "") == "2 older ones were dropped: more than 3 waited");
    CHECK(queue.begin(kStart) == "4");
    CHECK(queue.ended(kStart, "").empty());
    CHECK(queue.begin(kStart) == "5");
}

TEST_CASE("a URL is told from a command, and its path from what may be shown") {
    CHECK(*read_notify_target("mail -s x me") == NotifyTarget(NotifyCommand{"mail -s x me"}));
    const NotifyUrl hook = url_of("https://hooks.example.com/T0/B1?k=secret#x");
    CHECK(hook == NotifyUrl{.is_tls = true,
                            .server = {"hooks.example.com", 443},
                            .authority = "hooks.example.com",
                            .path = "/T0/B1?k=secret"});
    CHECK(name_of(hook) == "https://hooks.example.com");
    CHECK(name_of(NotifyCommand{"secret"}) == "the command");
    CHECK(url_of("http://a:8080?x=1") ==
          NotifyUrl{.server = {"a", 8080}, .authority = "a:8080", .path = "/?x=1"});
    CHECK(url_of("http://[::1]/a").server == rdzv::Endpoint{"::1", 80});
    CHECK(url_of("https://[::1]:444").path == "/");
}

TEST_CASE("what is no URL is refused, and not shown") {
    for (const char* wrong :
         {"http://", "http:///secret", "http://h:0/secret", "http://h:x/secret",
          "http://user:secret@h/", "http://h/secret \r\nX: y", "https://h/sec ret"}) {
        CAPTURE(wrong);
        const Result<NotifyTarget> target = read_notify_target(wrong);
        REQUIRE_FALSE(target);
        CHECK(target.error().what.find("secret") == std::string::npos);
    }
}

TEST_CASE("people are told of hangs, restarts, spares, quarantine and the verdict only") {
    const auto word = [](EventKind kind, std::vector<rdzv::EventField> fields = {}) {
        return std::string(rdzv::notified_as(Event{.kind = kind, .fields = std::move(fields)}));
    };
    CHECK(word(EventKind::Stop, {{"cause", std::string("hang")}}) == "hang");
    CHECK(word(EventKind::HangNotice) == "hang");
    CHECK(word(EventKind::Stop, {{"cause", std::string("failure")}}).empty());
    CHECK(word(EventKind::Formed, {{"text", std::string()}}).empty());
    CHECK(word(EventKind::Formed, {{"text", std::string("rank 1 failed")}}) == "restart");
    CHECK(word(EventKind::Spare) == "spare");
    CHECK(word(EventKind::Quarantine) == "quarantine");
    CHECK(word(EventKind::Verdict) == "verdict");
    CHECK(word(EventKind::Failure).empty());
    const Event event{.kind = EventKind::Formed,
                      .generation = Generation(2),
                      .fields = {{"nodes", std::int64_t{3}}, {"text", std::string("0123456789")}}};
    CHECK(rdzv::notified_text(event, 9) ==
          R"({"notice":"restart","event":"formed","generation":2,"nodes":3,"text":"…456789"})");
}

}  // namespace
}  // namespace ddprun::agent
