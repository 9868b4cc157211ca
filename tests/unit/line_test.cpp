// The pure parts of the output thread: lines for a shared console, prefixes, tails.

#include <string>
#include <string_view>
#include <vector>

#include "agent/output/added_returns.hpp"
#include "agent/output/json_line.hpp"
#include "agent/output/line_prefix.hpp"
#include "agent/output/line_splitter.hpp"
#include "agent/output/line_tail.hpp"
#include "base/rng.hpp"
#include "tests/support/catch.hpp"

using ddprun::Generation;
using ddprun::LocalRank;
using ddprun::Rank;
using ddprun::Rng;
using ddprun::agent::AddedReturns;
using ddprun::agent::JsonLine;
using ddprun::agent::LineSplitter;
using ddprun::agent::LineTail;
using ddprun::agent::node_prefix;
using ddprun::agent::Returns;
using ddprun::agent::torchrun_prefix;
using ddprun::agent::with_prefix;

namespace {

constexpr std::size_t kNoBound = 1000;

std::string split(const std::vector<std::string>& chunks, std::size_t bound = kNoBound) {
    LineSplitter splitter(with_prefix("> "), bound);
    std::string out;
    for (const std::string& chunk : chunks) {
        splitter.feed(chunk, out);
    }
    splitter.finish(out);
    return out;
}

}  // namespace

TEST_CASE("whole lines get the prefix, empty ones too") {
    CHECK(split({"one\ntwo\n\nfour\n"}) == "> one\n> two\n> \n> four\n");
}

TEST_CASE("a line that arrives in parts appears only once it is whole") {
    LineSplitter splitter(with_prefix("> "), kNoBound);
    std::string out;
    splitter.feed("half", out);
    CHECK(out.empty());
    splitter.feed(" and half\nnext", out);
    CHECK(out == "> half and half\n");
}

TEST_CASE("where carriage returns stay, whole lines are as they were written") {
    LineSplitter splitter(with_prefix({}), 12, Returns::Stay);
    std::string out;
    splitter.feed("\r 10%\r 9", out);
    CHECK(out.empty());
    splitter.feed("0%\r\n\r\n\nnext", out);
    CHECK(out == "\r 10%\r 90%\r\n\r\n\n");
    splitter.finish(out);
    CHECK(out.ends_with("\nnext\n"));
}

TEST_CASE("an unfinished last line gets a line end when the stream is finished") {
    CHECK(split({"no end"}) == "> no end\n");
    CHECK(split({"end\n"}) == "> end\n");
    CHECK(split({""}).empty());
}

TEST_CASE("a progress bar's carriage returns end lines, and its empty start is not shown") {
    CHECK(split({"\r 1%", "\r 2%", "\r 3%\n"}) == ">  1%\n>  2%\n>  3%\n");
}

TEST_CASE("carriage return and line feed are one line end, even in two chunks") {
    CHECK(split({"a\r\nb\r", "\nc\r\n"}) == "> a\n> b\n> c\n");
    CHECK(split({"\r\n"}).empty());
}

TEST_CASE("a line beyond the bound is shown in pieces and none of its bytes is lost") {
    CHECK(split({"abcdefgh\nx\n"}, 3) == "> abc\n> def\n> gh\n> x\n");
    CHECK(split({"ab", "cd", "ef\n"}, 3) == "> abc\n> def\n");
    CHECK(split({"abc\n"}, 3) == "> abc\n");
}

TEST_CASE("how the bytes are cut into chunks does not change the lines") {
    Rng rng(7);
    for (int round = 0; round < 300; ++round) {
        std::string text;
        for (std::uint64_t i = rng.below(60); i > 0; --i) {
            text.push_back("ab\n\r\0"[rng.below(5)]);
        }
        std::vector<std::string> chunks;
        for (std::string_view rest = text; !rest.empty();) {
            const std::size_t size = 1 + rng.below(rest.size());
            chunks.emplace_back(rest.substr(0, size));
            rest.remove_prefix(size);
        }
        INFO(round);
        REQUIRE(split(chunks) == split({text}));
    }
}

TEST_CASE("the node's prefix names host and rank") {
    CHECK(node_prefix("gpu-07", Rank(12)) == "[gpu-07 12] ");
}

TEST_CASE("torchrun's prefix is its default or the template with its macros replaced") {
    const auto prefix = [](std::string_view text) {
        return torchrun_prefix(text, "trainer", "gpu-07", Rank(9), LocalRank(1));
    };
    CHECK(prefix("") == "[trainer1]:");
    CHECK(prefix("${role_name}/$rank/${local_rank} ") == "trainer/9/1 ");
    CHECK(prefix("${hostname}:${rank}: ") == "gpu-07:9: ");
    CHECK(prefix("$$rank ${other} $ ${rank $") == "$rank ${other} $ ${rank $");
    CHECK(prefix("$rank_x$") == "$rank_x$");
}

TEST_CASE("returns that a terminal adds are taken out, whatever the pieces") {
    // Each is what a program wrote; the terminal puts "\r" before each "\n".
    for (const std::string written : {"a\nb\n", "10%\r20%\r\n", "\r", "\n\n\r\r\n", "x\r"}) {
        std::string shown;
        for (const char byte : written) {
            shown += byte == '\n' ? std::string("\r\n") : std::string(1, byte);
        }
        for (std::size_t size = 1; size <= shown.size(); ++size) {
            AddedReturns returns;
            std::string found;
            for (std::size_t at = 0; at < shown.size(); at += size) {
                returns.remove(std::string_view(shown).substr(at, size), found);
            }
            returns.finish(found);
            CHECK(found == written);
        }
    }
}

TEST_CASE("a tail keeps exactly the last bytes") {
    Rng rng(3);
    for (int round = 0; round < 200; ++round) {
        LineTail tail(100);
        std::string all;
        for (std::uint64_t i = rng.below(40); i > 0; --i) {
            const std::string piece(rng.below(130), static_cast<char>('a' + rng.below(26)));
            tail.add(piece);
            all += piece;
        }
        const std::string last = all.size() > 100 ? all.substr(all.size() - 100) : all;
        INFO(round);
        REQUIRE(tail.text() == last);
    }
}

TEST_CASE("a JSON line tells when, where and what, whatever bytes it is") {
    const ddprun::Milliseconds time(1'700'000'000'042);
    std::string out;
    JsonLine("gpu-07", "stderr", {{Rank(13), LocalRank(5), Generation(2)}})
        .append(time, "loss \"1\"\t\xff", out);
    CHECK(out ==
          R"({"time":"2023-11-14T22:13:20.042Z","host":"gpu-07","stream":"stderr","rank":13,)"
          R"("local_rank":5,"generation":2,"message":"loss \"1\"\t)"
          "\xef\xbf\xbd\"}\n");
    out.clear();
    JsonLine("a\"b", "ddprun", {}).append(time, "", out);
    CHECK(out ==
          R"({"time":"2023-11-14T22:13:20.042Z","host":"a\"b","stream":"ddprun","message":""})"
          "\n");
}
