#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/output/window_size.hpp"
#include "base/instant.hpp"
#include "base/limits.hpp"
#include "base/tagged.hpp"

namespace ddprun::agent {

struct ScreenOptions {
    bool has_prefixes = true;
    std::string host;   ///< in prefixes, `[host 0-3] `; empty: `[0-3] `
    bool folds = true;  ///< equal lines of several ranks are one; needs prefixes
    Limits limits;
};

/// Draws a terminal that several workers write to. Whole lines scroll by, with the rank before
/// them. A line that "\r" begins anew (a progress bar) keeps its place: those of all ranks are a
/// block below the lines, each redrawn where it is; a line that something else in the program has
/// written behind a bar is a line of its own. Another unfinished line (a prompt) is shown when it
/// has not grown for a while; the cursor stays behind it until something else is shown. Equal lines
/// that several ranks write within a while are one, `[0-7] text`; lines of one rank never change
/// their order.
///
/// Knows of the terminal's control sequences as much as progress bars use: carriage return,
/// backspace, erasing, moving up (nested bars are rows of the block). Colours and links pass.
///
/// All functions append to `out` what the terminal is to be sent. Pure: the time is an argument.
class Screen {
public:
    /// A stream that is shown, in the order in which they stand in the block.
    struct Source {
        Rank rank;
        int number = 0;

        auto operator<=>(const Source&) const = default;
    };

    Screen(ScreenOptions options, WindowSize window);

    /// `own_prefix`: instead of the rank's; such lines are never folded.
    [[nodiscard]] Source add(Rank rank, std::optional<std::string> own_prefix);
    void feed(Instant now, Source source, std::string_view bytes, std::string& out);
    /// Turns an unfinished line into a whole one. More may follow.
    void finish(Instant now, Source source, std::string& out);
    /// Nothing follows.
    void remove(Instant now, Source source, std::string& out);

    /// Lines that are no worker's, whole, after all that was fed before.
    void say(std::string_view lines, std::string& out);

    /// From this moment on tick() has something to show.
    [[nodiscard]] std::optional<Instant> next_deadline() const;
    void tick(Instant now, std::string& out);

    void resize(WindowSize window, std::string& out);

    /// A line that stays below all others, cut to the window's width; empty: none. It gives way to
    /// a prompt.
    void set_foot(std::string text, std::string& out);

private:
    /// A line that is not finished.
    struct Row {
        std::string text;
        bool starts_over = false;  ///< the cursor is at its begin: what comes replaces the text
        bool is_bar = false;       ///< it has been begun anew
        std::size_t drawn = 0;     ///< of a bar: what came together, the begin of the text
        std::size_t shown = 0;     ///< as a prompt: so much of the text
    };
    struct Stream {
        std::optional<std::string> own_prefix;
        std::vector<Row> rows{Row{}};
        std::optional<Row> left_bar;  ///< its line was ended by another's text; it stays in sight
        std::size_t cursor = 0;       ///< the row that is written to
        std::size_t height = 0;       ///< rows that it goes up: those stay open
        std::string escape;           ///< the begin of a control sequence
        std::optional<Instant> prompt_at;
        std::uint64_t next_line = 0;  ///< lines_ before this number are older than its last
    };
    /// A line of one or several ranks that waits for others.
    struct Line {
        std::string text;
        std::vector<int> ranks;
        Instant since;
        std::optional<std::string> own_prefix;
    };

    void take(Stream& stream, Rank rank, std::string_view bytes);
    void write(Stream& stream, Rank rank, std::string_view text);
    static void begin_anew(Stream& stream, Row& row);
    void control(Stream& stream, std::string_view sequence);
    void go_up(Stream& stream, std::size_t count);
    void end_row(Stream& stream, Rank rank);
    [[nodiscard]] bool split_from_bar(Stream& stream, Rank rank);
    void commit(Stream& stream, Rank rank, Row row);
    void add_line(Stream& stream, Rank rank, std::string text);
    void emit(const Line& line);
    void emit_due(bool is_all);
    [[nodiscard]] std::string prefix_of(const std::vector<int>& ranks,
                                        const std::optional<std::string>& own_prefix) const;
    [[nodiscard]] WindowSize usable_window() const;
    [[nodiscard]] std::vector<std::string> wanted_bars() const;
    [[nodiscard]] std::optional<Source> due_prompt() const;
    void update(std::string& out);
    [[nodiscard]] bool leave_prompt(bool is_interrupted, std::string& out);
    void draw(std::optional<Source> prompt, std::string& out);
    void redraw_in_place(std::vector<std::string> block, std::string& out);

    const ScreenOptions options_;
    WindowSize window_;
    Instant now_{};
    std::map<Source, Stream> streams_;
    int added_ = 0;
    std::deque<Line> lines_;                   ///< whole, and not shown yet; the oldest first
    std::uint64_t first_line_ = 0;             ///< number of the first of lines_
    std::string ready_;                        ///< lines that are to be shown now
    std::vector<std::string> block_;           ///< as drawn; the cursor is behind the last
    std::optional<Source> prompt_;             ///< shown last; the cursor is behind it
    std::vector<std::string> hidden_;          ///< the bars that the prompt has taken the place of
    std::string foot_;                         ///< stays below the bars; empty: none
    std::optional<std::string> prompts_rest_;  ///< of a prompt whose line is whole now
};

/// The window of a worker's own terminal, which people see through a Screen in `window`: a line
/// that fills it fits behind the prefix.
[[nodiscard]] WindowSize window_behind_prefix(const ScreenOptions& options, WindowSize window,
                                              Rank rank);

}  // namespace ddprun::agent
