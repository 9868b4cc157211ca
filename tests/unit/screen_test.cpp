// Screen shows several workers on a terminal: its bytes on a terminal that is made up.

#include "agent/output/screen.hpp"

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/output/text_width.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/fake_terminal.hpp"

using ddprun::Instant;
using ddprun::Milliseconds;
using ddprun::Rank;
using ddprun::agent::fit_columns;
using ddprun::agent::Screen;
using ddprun::agent::ScreenOptions;
using ddprun::agent::width_of;
using ddprun::agent::window_behind_prefix;
using ddprun::agent::WindowSize;
using ddprun::test::FakeTerminal;

namespace {

using Lines = std::vector<std::string>;

ScreenOptions usual_options() {
    return {.has_prefixes = true,
            .host = "",
            .folds = true,
            .limits = {.console_line_bytes_max = 1000,
                       .fold_within = Milliseconds{200},
                       .folded_lines_max = 100,
                       .prompt_after = Milliseconds{100}}};
}

/// Several ranks at one terminal of 10 lines of 40 characters.
class Watched {
public:
    explicit Watched(int ranks, ScreenOptions options = usual_options())
        : screen_(std::move(options), {.rows = 10, .columns = 40}) {
        for (int rank = 0; rank < ranks; ++rank) {
            sources_.push_back(screen_.add(Rank(rank), std::nullopt));
        }
    }

    Watched& write(int rank, std::string_view bytes) {
        show([&](std::string& out) { screen_.feed(now_, source(rank), bytes, out); });
        return *this;
    }
    Watched& finish(int rank) {
        show([&](std::string& out) { screen_.finish(now_, source(rank), out); });
        return *this;
    }
    Watched& say(std::string_view lines) {
        show([&](std::string& out) { screen_.say(lines, out); });
        return *this;
    }
    /// Ticks exactly when the screen asks for it.
    Watched& wait(int milliseconds) {
        const Instant end = now_ + Milliseconds{milliseconds};
        for (auto due = screen_.next_deadline(); due && *due <= end;
             due = screen_.next_deadline()) {
            now_ = *due;
            show([&](std::string& out) { screen_.tick(now_, out); });
        }
        now_ = end;
        return *this;
    }
    Watched& foot(std::string_view text) {
        show([&](std::string& out) { screen_.set_foot(std::string(text), out); });
        return *this;
    }
    Watched& resize(int rows, int columns) {
        show([&](std::string& out) { screen_.resize({rows, columns}, out); });
        return *this;
    }

    [[nodiscard]] Lines lines() const { return terminal_.lines(); }

private:
    template <typename Act>
    void show(const Act& act) {
        std::string out;
        act(out);
        terminal_.feed(out);
    }
    [[nodiscard]] Screen::Source source(int rank) const {
        return sources_.at(static_cast<std::size_t>(rank));
    }

    Screen screen_;
    FakeTerminal terminal_{10, 40};
    std::vector<Screen::Source> sources_;
    Instant now_{};
};

}  // namespace

TEST_CASE("a line of a lone rank is shown at once") {
    Watched watched(1);
    watched.write(0, "one\ntwo\n");
    CHECK(watched.lines() == Lines{"[0] one", "[0] two", ""});
}

TEST_CASE("equal lines of all ranks are one, as soon as all have written it") {
    Watched watched(4);
    for (const int rank : {2, 0, 3}) {
        watched.write(rank, "ready\n");
    }
    CHECK(watched.lines() == Lines{""});
    watched.write(1, "ready\n");
    CHECK(watched.lines() == Lines{"[0-3] ready", ""});
}

TEST_CASE("equal lines of some ranks are one after the time for others is over") {
    Watched watched(8);
    for (const int rank : {0, 1, 2, 5, 7}) {
        watched.write(rank, "ready\n").wait(10);
    }
    CHECK(watched.lines() == Lines{""});
    watched.wait(200);
    CHECK(watched.lines() == Lines{"[0-2,5,7] ready", ""});
    watched.write(3, "ready\n").wait(200);
    CHECK(watched.lines() == Lines{"[0-2,5,7] ready", "[3] ready", ""});
}

TEST_CASE("folding never changes the order of a rank's lines") {
    Watched watched(2);
    watched.write(0, "a\nb\na\n").write(1, "b\na\nb\n").wait(200);
    CHECK(watched.lines() == Lines{"[0] a", "[0-1] b", "[0-1] a", "[1] b", ""});
}

TEST_CASE("a line that a rank repeats is shown as often") {
    Watched watched(2);
    watched.write(0, "same\nsame\n").write(1, "same\n").wait(200);
    CHECK(watched.lines() == Lines{"[0-1] same", "[0] same", ""});
}

TEST_CASE("without folding, and without prefixes, each line is shown at once") {
    ScreenOptions options = usual_options();
    options.folds = false;
    Watched apart(2, options);
    apart.write(0, "ready\n").write(1, "ready\n");
    CHECK(apart.lines() == Lines{"[0] ready", "[1] ready", ""});
    options.folds = true;
    options.has_prefixes = false;
    Watched bare(2, options);
    bare.write(0, "ready\n").write(1, "ready\n");
    CHECK(bare.lines() == Lines{"ready", "ready", ""});
}

TEST_CASE("lines wait for others in a bounded queue") {
    ScreenOptions options = usual_options();
    options.limits.folded_lines_max = 3;
    Watched watched(2, options);
    watched.write(0, "1\n2\n3\n4\n5\n");
    CHECK(watched.lines() == Lines{"[0] 1", "[0] 2", ""});
}

TEST_CASE("on several nodes the host stands before the ranks") {
    ScreenOptions options = usual_options();
    options.host = "gpu-07";
    Watched watched(2, options);
    watched.write(0, "ready\n").write(1, "ready\n");
    CHECK(watched.lines() == Lines{"[gpu-07 0-1] ready", ""});
}

TEST_CASE("progress bars of several ranks are a block below the lines") {
    Watched watched(3);
    for (int step = 1; step <= 3; ++step) {
        for (int rank = 0; rank < 3; ++rank) {
            watched.write(rank, "\r" + std::to_string(step) + "/3");
        }
    }
    CHECK(watched.lines() == Lines{"[0] 3/3", "[1] 3/3", "[2] 3/3"});
    watched.write(1, "\n").write(1, "epoch done\n").wait(200);
    CHECK(watched.lines() == Lines{"[1] 3/3", "[1] epoch done", "[0] 3/3", "[2] 3/3"});
    watched.write(2, "\n").write(0, "\n").wait(200);
    CHECK(watched.lines() == Lines{"[1] 3/3", "[1] epoch done", "[0,2] 3/3", ""});
}

TEST_CASE("what tqdm.write() says stands alone, and the bar stays below it") {
    Watched watched(1);
    watched.write(0, "\r 50%|#####     | 5/10");
    watched.write(0, "\r                     \r").write(0, "loss 0.25").write(0, "\n");
    watched.write(0, "\r 60%|######    | 6/10");
    CHECK(watched.lines() == Lines{"[0] loss 0.25", "[0]  60%|######    | 6/10"});
}

TEST_CASE("a line that something else writes behind a bar is a line of its own") {
    Watched watched(1);
    watched.write(0, "\r 50%|#####     | 5/10").write(0, "wandb: synced").write(0, "\n");
    CHECK(watched.lines() == Lines{"[0] wandb: synced", "[0]  50%|#####     | 5/10"});
    watched.write(0, "and more\n").write(0, "\r 60%|######    | 6/10");
    CHECK(watched.lines() ==
          Lines{"[0] wandb: synced", "[0] and more", "[0]  60%|######    | 6/10"});
    // A prompt behind it is shown; the bar comes back below.
    watched.write(0, "> train.py(3)\n(Pdb) ").wait(100);
    CHECK(watched.lines().back() == "[0] (Pdb)");
    watched.write(0, "\n\r 70%|#######   | 7/10\n").wait(200);
    CHECK(watched.lines() == Lines{"[0] wandb: synced", "[0] and more", "[0] > train.py(3)",
                                   "[0] (Pdb)", "[0]  70%|#######   | 7/10", ""});
}

TEST_CASE("a bar that ends with other text behind it is whole, too") {
    Watched watched(1);
    watched.write(0, "\r100%").write(0, "trained\n").finish(0).wait(200);
    CHECK(watched.lines() == Lines{"[0] trained", "[0] 100%", ""});
    for (const char* rest : {", done.\n", " done\n", "] 5/5\n"}) {
        Watched other(1);
        other.write(0, "\rcounting: 100%").write(0, rest).finish(0).wait(200);
        CHECK(other.lines().front() ==
              "[0] counting: 100%" + std::string(rest, std::string_view(rest).size() - 1));
    }
}

TEST_CASE("a bar that is cleared leaves nothing, and a shorter text no rest") {
    Watched watched(1);
    watched.write(0, "\rloading a long name").write(0, "\rdone");
    CHECK(watched.lines() == Lines{"[0] done"});
    watched.write(0, "\r     \r").write(0, "next\n");
    CHECK(watched.lines() == Lines{"[0] next", ""});
    watched.write(0, "\rgone\x1b[2K\r").finish(0);
    CHECK(watched.lines() == Lines{"[0] next", ""});
}

TEST_CASE("nested bars are rows of the block") {
    Watched watched(2);
    watched.write(1, "\rother");
    watched.write(0, "\router 0").write(0, "\n").write(0, "\rinner 0").write(0, "\x1b[A");
    for (const char* step : {"1", "2"}) {
        watched.write(0, "\n").write(0, std::string("\rinner ") + step).write(0, "\x1b[A");
        watched.write(0, std::string("\router ") + step);
    }
    watched.wait(200);
    CHECK(watched.lines() == Lines{"[0] outer 0", "[0] outer 2", "[0] inner 2", "[1] other"});
    watched.finish(0).finish(1).wait(200);
    CHECK(watched.lines() == Lines{"[0] outer 0", "[0] outer 2", "[0] inner 2", "[1] other", ""});
}

TEST_CASE("a prompt is shown when it has waited, and its line goes on behind it") {
    Watched watched(2);
    watched.write(0, "Loading... ");
    CHECK(watched.lines() == Lines{""});
    watched.wait(100);
    CHECK(watched.lines() == Lines{"[0] Loading..."});
    watched.write(0, "half ").write(0, "done\n");
    CHECK(watched.lines() == Lines{"[0] Loading... half done", ""});
}

TEST_CASE("what others write stands below a prompt, never behind it") {
    Watched watched(2);
    watched.write(0, "(Pdb) ").wait(100).write(1, "step 1\n").wait(200);
    CHECK(watched.lines() == Lines{"[0] (Pdb)", "[1] step 1", ""});
    watched.write(0, "x = 1\n").wait(200);
    CHECK(watched.lines() == Lines{"[0] (Pdb)", "[1] step 1", "[0] x = 1", ""});
}

TEST_CASE("a rank's lines that wait for others come before its prompt") {
    Watched watched(2);
    watched.write(0, "question\nanswer? ").wait(100);
    CHECK(watched.lines() == Lines{"[0] question", "[0] answer?"});
}

TEST_CASE("bars make way for a prompt, and come back below it") {
    Watched watched(2);
    watched.write(1, "\rbar 1").write(0, "name? ").wait(100);
    CHECK(watched.lines() == Lines{"[0] name?"});
    watched.write(1, "\rbar 2");
    CHECK(watched.lines() == Lines{"[0] name?", "[1] bar 2"});
}

TEST_CASE("a prompt that becomes a bar keeps its place") {
    Watched watched(1);
    watched.write(0, "Downloading").wait(100).write(0, "\rDownloading 10%");
    CHECK(watched.lines() == Lines{"[0] Downloading 10%"});
    watched.finish(0);
    CHECK(watched.lines() == Lines{"[0] Downloading 10%", ""});
}

TEST_CASE("ddprun's own lines come after all that was written before, above the bars") {
    Watched watched(2);
    watched.write(0, "one\n").write(1, "\r50%").say("ddprun: restart\n");
    CHECK(watched.lines() == Lines{"[0] one", "ddprun: restart", "[1] 50%"});
}

TEST_CASE("a bar never wraps, and a block never passes the window") {
    Watched watched(12);
    for (int rank = 0; rank < 12; ++rank) {
        watched.write(rank, "\r" + std::string(50, 'x'));
        watched.write(rank, "\r" + std::string(50, 'y'));
    }
    const Lines lines = watched.lines();
    REQUIRE(lines.size() == 9);
    CHECK(lines[0] == "[0] " + std::string(35, 'y'));
    CHECK(lines[8] == "... and 4 more");
    const WindowSize window = window_behind_prefix(usual_options(), {10, 40}, Rank(3));
    CHECK(window == WindowSize{10, 35});
}

TEST_CASE("after a change of the window the block is drawn anew") {
    Watched watched(2);
    watched.write(0, "\ra").write(1, "\rb").resize(10, 30).write(0, "\rc");
    CHECK(watched.lines() == Lines{"[0] c", "[1] b"});
}

TEST_CASE("a block whose lines the narrower window has broken is begun anew below") {
    Watched watched(1);
    watched.write(0, "\r" + std::string(30, 'y')).resize(10, 30).write(0, "\rc");
    CHECK(watched.lines() == Lines{"[0] " + std::string(30, 'y'), "[0] c"});
}

TEST_CASE("a live line stays below all else, and is taken away without a trace") {
    Watched watched(2);
    watched.foot("step 1").write(0, "one\n").write(1, "\rbar").foot("step 2").say("said\n");
    CHECK(watched.lines() == Lines{"[0] one", "said", "[1] bar", "step 2"});
    watched.write(0, "two\n").wait(200).foot("step 3").write(1, "\rbar 2");
    CHECK(watched.lines() == Lines{"[0] one", "said", "[0] two", "[1] bar 2", "step 3"});
    watched.write(1, "\n").wait(200).foot("");
    CHECK(watched.lines() == Lines{"[0] one", "said", "[0] two", "[1] bar 2", ""});
}

TEST_CASE("a live line gives way to a prompt, and does not break it") {
    Watched watched(2);
    watched.foot("step 1").write(0, "name? ").wait(100).foot("step 2").foot("step 3");
    CHECK(watched.lines() == Lines{"[0] name?"});
    watched.write(0, "thanks\n");
    CHECK(watched.lines() == Lines{"[0] name? thanks", "step 3"});
}

TEST_CASE("a live line is cut to the window, and follows it") {
    Watched watched(1);
    watched.foot(std::string(50, 'x'));
    CHECK(watched.lines() == Lines{std::string(39, 'x')});
    watched.resize(10, 20);
    CHECK(watched.lines() == Lines{std::string(39, 'x'), std::string(19, 'x')});
    watched.foot("short").resize(10, 10).resize(10, 40).foot("longer");
    CHECK(watched.lines() == Lines{std::string(39, 'x'), "longer"});
}

TEST_CASE("colours pass, and end with their line; what would move the cursor does not pass") {
    Screen screen(usual_options(), {.rows = 10, .columns = 40});
    const Screen::Source source = screen.add(Rank(0), std::nullopt);
    std::string out;
    screen.feed(Instant{}, source, "\x1b[?25l\x1b[31mred\x1b[5;5H\n\x1b[32mgreen\x1b[0m", out);
    screen.feed(Instant{}, source, "\n\x1b]8;;http://x\x07link\x1b]8;;\x07\n", out);
    CHECK(out ==
          "[0] \x1b[31mred\x1b[0m\n[0] \x1b[32mgreen\x1b[0m\n"
          "[0] \x1b]8;;http://x\x07link\x1b]8;;\x07\n");
}

TEST_CASE("a tee'd stream keeps its own prefix and is not folded") {
    Screen screen(usual_options(), {.rows = 10, .columns = 40});
    const Screen::Source one = screen.add(Rank(0), "[default0]:");
    const Screen::Source two = screen.add(Rank(1), "[default1]:");
    std::string out;
    screen.feed(Instant{}, one, "ready\n", out);
    screen.feed(Instant{}, two, "ready\n", out);
    CHECK(out == "[default0]:ready\n[default1]:ready\n");
}

TEST_CASE("widths are those that terminals use") {
    CHECK(width_of("ab\xe2\x96\x88") == 3);            // a full block
    CHECK(width_of("\xe4\xb8\xad\xe6\x96\x87") == 4);  // Chinese
    CHECK(width_of("\x1b[31mred\x1b[0m\xff") == 4);
    CHECK(fit_columns("\x1b[31mabcdef\x1b[0m", 3) == "\x1b[31mabc\x1b[0m");
    CHECK(fit_columns("a\tb", 20) == "a       b");
}
