// FairTurns and TextMaker keep many watchers from holding up the loop.

#include <cstddef>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include "rendezvous/http/fair_turns.hpp"
#include "rendezvous/http/text_maker.hpp"
#include "tests/support/catch.hpp"

namespace ddprun::rdzv {

namespace {

using Text = TextMaker::Text;
using MakeText = std::function<std::string()>;

}  // namespace

TEST_CASE("of many in line only a few have their turn before anybody else has his") {
    boost::asio::io_context io(1);
    FairTurns turns(io, 4);
    std::vector<std::unique_ptr<FairTurns::Place>> places;
    std::size_t had = 0;
    std::vector<std::size_t> had_before;  // each time when the other handler ran
    for (int i = 0; i < 100; ++i) {
        places.push_back(std::make_unique<FairTurns::Place>(io));
        places.back()->has_come.async_wait([&had](const auto&) { ++had; });
        turns.line_up(*places.back());
        turns.line_up(*places.back());  // It is in line already.
    }
    const std::function<void()> somebody_else = [&] {
        had_before.push_back(had);
        if (had < places.size()) {
            boost::asio::post(io, somebody_else);
        }
    };
    boost::asio::post(io, somebody_else);
    io.run();
    CHECK(had == 100);
    CHECK(had_before.size() >= 25);
    for (std::size_t i = 1; i < had_before.size(); ++i) {
        CHECK(had_before[i] - had_before[i - 1] <= 4);
    }
}

TEST_CASE("who leaves the line has no turn, and the others go on") {
    boost::asio::io_context io(1);
    FairTurns turns(io, 1);
    auto gone = std::make_unique<FairTurns::Place>(io);
    FairTurns::Place next(io);
    bool has_come = false;
    next.has_come.async_wait([&has_come](const auto&) { has_come = true; });
    turns.line_up(*gone);
    turns.line_up(next);
    turns.leave(*gone);
    turns.leave(*gone);
    gone.reset();
    io.run();
    CHECK(has_come);
}

TEST_CASE("while a text is made the loop goes on, and who wants the same next shares it") {
    boost::asio::io_context io(1);
    const auto work = boost::asio::make_work_guard(io);
    TextMaker texts(io, 1000);
    std::promise<void> may_end;
    std::shared_future<void> end = may_end.get_future().share();
    int looks = 0;
    std::vector<std::string> told;
    const auto look = [&](const std::string& name) {
        return [&looks, end, name]() -> Result<MakeText> {
            ++looks;
            return MakeText([end, text = name + std::to_string(looks)] {
                end.wait();
                return text;
            });
        };
    };
    const auto tell = [&told](const Result<Text>& text) {
        told.push_back(text ? **text : text.error().what);
    };
    texts.want("status", look("status"), tell);  // begun at once
    for (int i = 0; i < 3; ++i) {
        texts.want("status", look("status"), tell);  // of how things are after that
        texts.want("metrics", look("metrics"), tell);
    }
    texts.want(
        "gone",
        [] {
            return Result<MakeText>(Error{ErrorCode::NotFound, "no such job"});
        },
        tell);
    bool has_gone_on = false;
    boost::asio::post(io, [&has_gone_on] { has_gone_on = true; });
    io.run_one();
    CHECK(has_gone_on);
    CHECK(told.empty());
    may_end.set_value();
    while (told.size() < 8) {
        io.run_one();
    }
    CHECK(looks == 3);
    CHECK(told == std::vector<std::string>{"status1", "status2", "status2", "status2", "metrics3",
                                           "metrics3", "metrics3", "no such job"});
}

TEST_CASE("texts that nobody takes are bounded") {
    boost::asio::io_context io(1);
    const auto work = boost::asio::make_work_guard(io);
    TextMaker texts(io, 1000);
    std::vector<Text> held;
    std::vector<std::string> failures;
    int answers = 0;
    const auto ask = [&] {
        texts.want(
            "status", [] { return Result<MakeText>([] { return std::string(600, 'x'); }); },
            [&](const Result<Text>& text) {
                ++answers;
                if (text) {
                    held.push_back(*text);
                } else {
                    failures.push_back(text.error().what);
                }
            });
        for (const int before = answers; answers == before && failures.empty();) {
            io.run_one();
        }
    };
    ask();
    ask();
    CHECK(failures.empty());
    ask();
    REQUIRE(failures.size() == 1);
    CHECK(failures[0].find("ask again later") != std::string::npos);
    held.clear();
    failures.clear();
    ask();
    CHECK(held.size() == 1);
}

}  // namespace ddprun::rdzv
