// Goal: an event reads as one line that says when, what and where, whatever its fields are.

#include "launcher/ctl/event_text.hpp"

#include <cstdlib>
#include <ctime>
#include <string>

#include "tests/support/catch.hpp"

using ddprun::launcher::event_text;

namespace {

/// Without the time.
std::string text_of(const std::string& fields) {
    return event_text(R"({"v":1,"seq":7,"time":"2026-11-23T08:29:32.123Z","event":)" + fields + "}")
        .substr(std::string("2026-11-23 08:29:32.123  ").size());
}

}  // namespace

TEST_CASE("the time is that of this machine's clock") {
    REQUIRE(::setenv("TZ", "UTC-2", 1) == 0);
    ::tzset();
    CHECK(event_text(R"({"time":"2026-11-23T23:29:32.123Z","event":"released"})") ==
          "2026-11-24 01:29:32.123  released");
    CHECK(event_text(R"({"time":"soon","event":"released"})") == "soon  released");
}

TEST_CASE("a failure is worded as in the report") {
    CHECK(text_of(R"("failure","generation":2,"rank":3,"host":"gpu-07","exit_code":17,)"
                  R"("step":40,"logs":"/logs/x")") ==
          "failure      generation 2, rank 3 on gpu-07: exited with code 17; step 40; "
          "logs in /logs/x");
    CHECK(text_of(R"("failure","rank":0,"signal":9,"signal_name":"SIGKILL","kernel":"OOM")") ==
          "failure      rank 0: was killed by SIGKILL; OOM");
    CHECK(text_of(R"("failure","rank":0,"hung":true)") == "failure      rank 0: hung");
    CHECK(text_of(R"("failure","rank":0,"exec_errno":2)") ==
          "failure      rank 0: could not execute the program: No such file or directory");
}

TEST_CASE("each event says what its fields say") {
    CHECK(text_of(R"("formed","generation":2,"nodes":2,"workers":4,"text":"rank 1 failed")") ==
          "formed       generation 2: rank 1 failed; 2 nodes, 4 workers");
    CHECK(text_of(R"("waiting","text":"")") == "waiting      for nothing any more");
    CHECK(text_of(R"("checkpoint_failed","rank":0,"step":30,"reason":"the disk is full")") ==
          "checkpoint failed  rank 0: the disk is full; step 30");
    CHECK(text_of(R"("checkpoint_failed","rank":0,"step":30,"reason":"")") ==
          "checkpoint failed  rank 0: the worker's output says why; step 30");
    CHECK(text_of(R"("quiet","generation":1,"quiet_ms":12000)") ==
          "quiet        generation 1: no sign of life for 12 s");
    CHECK(text_of(R"("quiet","generation":1,"quiet_ms":0)") ==
          "quiet        generation 1: shows signs of life again");
    CHECK(text_of(R"("held_up","ms":2500)") == "held up      for 2.5 s");
    CHECK(text_of(R"("operator","action":"hold","for_s":60,"by":"alice@head")") ==
          "operator     hold; for 60 s; asked by alice@head");
    CHECK(text_of(R"("leave","signal":15,"signal_name":"SIGTERM")") == "leave        SIGTERM");
    CHECK(text_of(R"("stopping","generation":1,"asked":true)") ==
          "stopping     generation 1: asked to save and leave");
    CHECK(text_of(R"("main","generation":1,"estimated":true)") ==
          "main         generation 1: estimated");
    CHECK(text_of(R"("lost","node":"n1","host":"gpu-1","text":"lease ended")") ==
          "lost         on gpu-1: lease ended");
}

TEST_CASE("an event is one line, and a line that is no event stays what it is") {
    CHECK(text_of(R"("last_words","rank":1,"text":"a\nb")") == R"(last words   rank 1: a\nb)");
    CHECK(event_text("no JSON\x1b") == R"(no JSON\x1b)");
    CHECK(event_text(R"(["event"])") == R"(["event"])");
    CHECK(text_of(R"("unheard_of","text":7,"generation":"x")") == "unheard of   generation x: 7");
}
