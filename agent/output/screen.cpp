#include "agent/output/screen.hpp"

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "agent/output/text_width.hpp"
#include "base/escape_sequence.hpp"
#include "base/number_ranges.hpp"

namespace ddprun::agent {

namespace {

constexpr std::string_view kSpecial = "\n\r\b\x1b";
/// The window of a terminal that does not report its own.
constexpr WindowSize kUsualWindow{.rows = 24, .columns = 80};
/// A worker's terminal is not narrower for the sake of its prefix.
constexpr int kColumnsMin = 20;

std::string up(std::size_t rows) {
    return rows == 0 ? "\r" : fmt::format("\r\x1b[{}A", rows);
}

/// Colours that a line has set do not reach the next one, which may be another rank's.
std::string without_colours_behind(std::string text) {
    const std::size_t last = text.rfind("\x1b[");
    if (last != std::string::npos) {
        const std::string_view sequence = std::string_view(text).substr(last);
        if (!sequence.starts_with("\x1b[0m") && !sequence.starts_with("\x1b[m")) {
            text += "\x1b[0m";
        }
    }
    return text;
}

void trim_end(std::string& text) {
    text.erase(text.find_last_not_of(" \t") + 1);
}

std::string rank_prefix(const ScreenOptions& options, const std::vector<int>& ranks) {
    return !options.has_prefixes
               ? std::string()
               : fmt::format("[{}{}{}] ", options.host, options.host.empty() ? "" : " ",
                             number_ranges(ranks));
}

/// The last character with its continuation bytes.
void erase_last(std::string& text) {
    while (!text.empty()) {
        const auto last = static_cast<unsigned char>(text.back());
        text.pop_back();
        if ((last & 0xC0U) != 0x80U) {
            return;
        }
    }
}

/// Whether `text`, which came later than the bar before it, is not a part of that. A bar that is
/// written in pieces continues with a blank or a mark.
bool is_behind_bar(std::string_view bar, std::string_view text) {
    constexpr std::string_view kGoesOn = " \t,.;:!?)]}%/|#=-+*";
    return !bar.empty() && !text.empty() && bar.back() != ' ' &&
           kGoesOn.find(text.front()) == std::string_view::npos;
}

}  // namespace

WindowSize window_behind_prefix(const ScreenOptions& options, WindowSize window, Rank rank) {
    if (window.columns <= 0 || !options.has_prefixes) {
        return window;
    }
    const int taken = static_cast<int>(width_of(rank_prefix(options, {rank.value()}))) + 1;
    const int least = std::min(window.columns, kColumnsMin);
    return {.rows = window.rows, .columns = std::max(window.columns - taken, least)};
}

Screen::Screen(ScreenOptions options, WindowSize window)
    : options_(std::move(options)), window_(window) {}

Screen::Source Screen::add(Rank rank, std::optional<std::string> own_prefix) {
    const Source source{rank, added_++};
    streams_[source].own_prefix = std::move(own_prefix);
    return source;
}

void Screen::feed(Instant now, Source source, std::string_view bytes, std::string& out) {
    now_ = now;
    take(streams_.at(source), source.rank, bytes);
    update(out);
}

void Screen::finish(Instant now, Source source, std::string& out) {
    now_ = now;
    Stream& stream = streams_.at(source);
    if (stream.left_bar) {
        commit(stream, source.rank, *std::exchange(stream.left_bar, std::nullopt));
    }
    for (Row& row : std::exchange(stream.rows, {Row{}})) {
        row.is_bar = row.is_bar || row.text.empty();
        commit(stream, source.rank, std::move(row));
    }
    stream.cursor = 0;
    stream.height = 0;
    stream.escape.clear();
    stream.prompt_at.reset();
    update(out);
}

void Screen::remove(Instant now, Source source, std::string& out) {
    finish(now, source, out);
    streams_.erase(source);
    update(out);
}

void Screen::say(std::string_view lines, std::string& out) {
    emit_due(true);
    ready_ += lines;
    update(out);
}

std::optional<Instant> Screen::next_deadline() const {
    std::optional<Instant> first;
    if (!lines_.empty()) {
        first = lines_.front().since + options_.limits.fold_within;
    }
    for (const auto& [source, stream] : streams_) {
        if (stream.prompt_at && (!first || *stream.prompt_at < *first)) {
            first = stream.prompt_at;
        }
    }
    return first;
}

void Screen::tick(Instant now, std::string& out) {
    now_ = now;
    update(out);
}

void Screen::resize(WindowSize window, std::string& out) {
    window_ = window;
    const auto columns = static_cast<std::size_t>(usable_window().columns);
    const bool fits = std::all_of(block_.begin(), block_.end(), [&](const std::string& line) {
        return width_of(line) < columns;
    });
    if (!block_.empty() && !fits) {
        // The terminal may have broken its lines anew: their places are unknown.
        out += "\n";
        block_.clear();
    }
    update(out);
}

void Screen::set_foot(std::string text, std::string& out) {
    if (text != foot_) {
        foot_ = std::move(text);
        update(out);
    }
}

void Screen::take(Stream& stream, Rank rank, std::string_view bytes) {
    while (!bytes.empty()) {
        if (!stream.escape.empty()) {
            stream.escape += bytes.front();
            bytes.remove_prefix(1);
            if (escape_length(stream.escape) != 0) {
                control(stream, std::exchange(stream.escape, {}));
            } else if (stream.escape.size() >= options_.limits.escape_bytes_max) {
                stream.escape.clear();
            }
            continue;
        }
        const std::size_t end = std::min(bytes.find_first_of(kSpecial), bytes.size());
        if (end > 0) {
            write(stream, rank, bytes.substr(0, end));
            bytes.remove_prefix(end);
            continue;
        }
        const char byte = bytes.front();
        bytes.remove_prefix(1);
        Row& row = stream.rows[stream.cursor];
        if (byte == '\n') {
            end_row(stream, rank);
        } else if (byte == '\r') {
            row.starts_over = true;
        } else if (byte == '\b') {
            erase_last(row.text);
            row.shown = std::min(row.shown, row.text.size());
        } else {
            stream.escape = byte;
        }
    }
    Row& row = stream.rows[stream.cursor];
    if (row.is_bar && row.drawn == 0) {
        row.drawn = row.text.size();
    }
}

void Screen::begin_anew(Stream& stream, Row& row) {
    row = Row{.is_bar = true};
    stream.left_bar.reset();
}

void Screen::write(Stream& stream, Rank rank, std::string_view text) {
    Row& row = stream.rows[stream.cursor];
    if (row.starts_over) {
        begin_anew(stream, row);
    }
    while (row.text.size() + text.size() >= options_.limits.console_line_bytes_max) {
        const std::size_t count = options_.limits.console_line_bytes_max - row.text.size();
        row.text.append(text.substr(0, count));
        text.remove_prefix(count);
        Row piece = std::exchange(row, Row{.is_bar = row.is_bar});
        commit(stream, rank, std::move(piece));
    }
    row.text.append(text);
    stream.prompt_at.reset();
    if (!row.is_bar && !row.text.empty()) {
        stream.prompt_at = now_ + options_.limits.prompt_after;
    }
}

void Screen::control(Stream& stream, std::string_view sequence) {
    Row& row = stream.rows[stream.cursor];
    if (!sequence.starts_with("\x1b[")) {
        if (sequence.starts_with("\x1b]")) {
            row.text += sequence;
        }
        return;
    }
    int number = 0;
    std::from_chars(sequence.data() + 2, sequence.data() + sequence.size() - 1, number);
    switch (sequence.back()) {
        case 'm':
            if (row.starts_over) {
                begin_anew(stream, row);
            }
            row.text += sequence;
            return;
        case 'K':
        case 'J':
            if (number != 0 || row.starts_over) {
                const bool starts_over = row.starts_over;
                begin_anew(stream, row);
                row.starts_over = starts_over;
            }
            return;
        case 'G':
            row.starts_over = row.starts_over || number <= 1;
            return;
        case 'A':
            go_up(stream, static_cast<std::size_t>(std::max(number, 1)));
            return;
        default:
            return;  // would move the cursor among what others have written
    }
}

void Screen::go_up(Stream& stream, std::size_t count) {
    for (Row& row : stream.rows) {
        row.is_bar = true;
        row.shown = 0;  // if it was a prompt, it is taken away and drawn in the block
    }
    for (; count > 0; --count) {
        if (stream.cursor > 0) {
            --stream.cursor;
        } else if (stream.rows.size() < options_.limits.bar_rows_max) {
            // The row's old text has scrolled by; the row is about to be drawn anew.
            stream.rows.insert(stream.rows.begin(), Row{.is_bar = true});
        }
    }
    stream.rows[stream.cursor].starts_over = true;
    stream.height = std::max(stream.height, stream.rows.size() - 1);
    stream.prompt_at.reset();
}

void Screen::end_row(Stream& stream, Rank rank) {
    stream.prompt_at.reset();
    if (++stream.cursor < stream.rows.size()) {
        stream.rows[stream.cursor].starts_over = true;
        return;
    }
    if (split_from_bar(stream, rank)) {
        return;
    }
    stream.rows.emplace_back();
    // Bars that are gone up to again stay open; what is above them is whole.
    while (stream.rows.size() > 1 &&
           (stream.rows.size() > stream.height + 1 || !stream.rows.front().is_bar)) {
        Row row = std::move(stream.rows.front());
        stream.rows.erase(stream.rows.begin());
        --stream.cursor;
        commit(stream, rank, std::move(row));
    }
}

/// A line that a logger or print() has written while a bar stood there. True: it is a line of its
/// own now, the bar stays until it is drawn anew, and the row is empty.
bool Screen::split_from_bar(Stream& stream, Rank rank) {
    Row& row = stream.rows.front();
    if (stream.rows.size() > 1 || !row.is_bar || row.starts_over || row.drawn > row.text.size()) {
        return false;
    }
    const std::string_view text = row.text;
    if (!is_behind_bar(text.substr(0, row.drawn), text.substr(row.drawn))) {
        return false;
    }
    add_line(stream, rank, without_colours_behind(row.text.substr(row.drawn)));
    row.text.resize(row.drawn);
    stream.left_bar = std::exchange(row, Row{});
    stream.cursor = 0;
    return true;
}

void Screen::commit(Stream& stream, Rank rank, Row row) {
    if (row.shown > 0) {
        prompts_rest_ = row.text.substr(row.shown) + "\n";
        prompt_.reset();
        return;
    }
    if (row.is_bar) {
        trim_end(row.text);
        if (row.text.empty()) {
            return;
        }
    }
    add_line(stream, rank, without_colours_behind(std::move(row.text)));
}

void Screen::add_line(Stream& stream, Rank rank, std::string text) {
    const bool folds = options_.folds && options_.has_prefixes && !stream.own_prefix;
    std::uint64_t number = std::max(stream.next_line, first_line_);
    const std::uint64_t end = first_line_ + lines_.size();
    for (; folds && number < end; ++number) {
        Line& line = lines_[number - first_line_];
        if (!line.own_prefix && line.text == text &&
            now_ - line.since < options_.limits.fold_within) {
            const auto at = std::lower_bound(line.ranks.begin(), line.ranks.end(), rank.value());
            if (at == line.ranks.end() || *at != rank.value()) {
                line.ranks.insert(at, rank.value());
                stream.next_line = number + 1;
                return;
            }
        }
    }
    lines_.push_back({.text = std::move(text),
                      .ranks = {rank.value()},
                      .since = folds ? now_ : now_ - options_.limits.fold_within,
                      .own_prefix = stream.own_prefix});
    stream.next_line = end + 1;
}

void Screen::emit(const Line& line) {
    ready_ += prefix_of(line.ranks, line.own_prefix);
    ready_ += line.text;
    ready_ += "\n";
}

void Screen::emit_due(bool is_all) {
    std::set<int> ranks;
    for (const auto& [source, stream] : streams_) {
        ranks.insert(source.rank.value());
    }
    while (!lines_.empty()) {
        const Line& line = lines_.front();
        if (!is_all && line.ranks.size() < ranks.size() &&
            now_ - line.since < options_.limits.fold_within &&
            lines_.size() <= options_.limits.folded_lines_max) {
            return;
        }
        emit(line);
        lines_.pop_front();
        ++first_line_;
    }
}

std::string Screen::prefix_of(const std::vector<int>& ranks,
                              const std::optional<std::string>& own_prefix) const {
    return own_prefix ? *own_prefix : rank_prefix(options_, ranks);
}

WindowSize Screen::usable_window() const {
    return {.rows = window_.rows > 1 ? window_.rows : kUsualWindow.rows,
            .columns = window_.columns > 1 ? window_.columns : kUsualWindow.columns};
}

std::vector<std::string> Screen::wanted_bars() const {
    const WindowSize window = usable_window();
    std::vector<std::string> block;
    const auto show = [&](Source source, const Stream& stream, const std::string& text) {
        block.push_back(without_colours_behind(
            fit_columns(prefix_of({source.rank.value()}, stream.own_prefix) + text,
                        static_cast<std::size_t>(window.columns) - 1)));
    };
    for (const auto& [source, stream] : streams_) {
        if (stream.left_bar) {
            show(source, stream, stream.left_bar->text);
        }
        for (const Row& row : stream.rows) {
            if ((row.is_bar || row.starts_over) && row.shown == 0 &&
                row.text.find_first_not_of(' ') != std::string::npos) {
                show(source, stream, row.text);
            }
        }
    }
    // One more and its first would scroll out of reach.
    const std::size_t others = !foot_.empty() && window.rows > 2 ? 2 : 1;
    const std::size_t most = static_cast<std::size_t>(window.rows) - others;
    if (block.size() > most) {
        const std::size_t hidden = block.size() - most + 1;
        block.resize(most);
        block.back() = fmt::format("... and {} more", hidden);
    }
    return block;
}

std::optional<Screen::Source> Screen::due_prompt() const {
    for (const auto& [source, stream] : streams_) {
        if (stream.prompt_at && *stream.prompt_at <= now_) {
            return source;
        }
    }
    return std::nullopt;
}

void Screen::update(std::string& out) {
    if (prompts_rest_) {
        out += *std::exchange(prompts_rest_, std::nullopt);
    }
    for (std::optional<Source> due = due_prompt(); due; due = due_prompt()) {
        streams_.at(*due).prompt_at.reset();
        emit_due(true);  // its own earlier lines come first
        draw(due == prompt_ ? std::nullopt : due, out);
    }
    emit_due(false);
    draw(std::nullopt, out);
}

/// True if the prompt stays and nothing else is to be shown.
bool Screen::leave_prompt(bool is_interrupted, std::string& out) {
    Stream& stream = streams_.at(*prompt_);
    Row& row = stream.rows[stream.cursor];
    if (row.is_bar || row.shown == 0) {
        out += "\r\x1b[K";  // it has begun anew: its place is in the block
    } else if (!is_interrupted) {
        out += row.text.substr(row.shown);
        row.shown = row.text.size();
        stream.prompt_at.reset();
        return true;
    } else {
        out += "\n";
        row.text.erase(0, row.shown);
        row.shown = 0;
        row.is_bar = true;  // what follows has no line to be appended to
        stream.prompt_at.reset();
    }
    prompt_.reset();
    return false;
}

void Screen::draw(std::optional<Source> prompt, std::string& out) {
    std::vector<std::string> block = wanted_bars();
    if (prompt_ && leave_prompt(prompt || !ready_.empty() || block != hidden_, out)) {
        return;
    }
    if (prompt) {
        hidden_ = block;
    } else if (!foot_.empty() &&
               block.size() + 1 < static_cast<std::size_t>(usable_window().rows)) {
        const auto columns = static_cast<std::size_t>(usable_window().columns) - 1;
        block.push_back(fit_columns(foot_, columns));
    }
    if (!prompt && ready_.empty()) {
        if (block == block_) {
            return;
        }
        if (!block.empty() && block.size() == block_.size()) {
            redraw_in_place(std::move(block), out);
            return;
        }
    }
    if (!block_.empty()) {
        out += up(block_.size() - 1);
        out += "\x1b[J";
        block_.clear();
    }
    out += std::exchange(ready_, {});
    if (prompt) {
        const Stream& stream = streams_.at(*prompt);
        Row& row = streams_.at(*prompt).rows[stream.cursor];
        out += prefix_of({prompt->rank.value()}, stream.own_prefix);
        out += row.text;
        row.shown = row.text.size();
        prompt_ = prompt;
        return;
    }
    for (std::size_t i = 0; i < block.size(); ++i) {
        out += i == 0 ? "" : "\n";
        out += block[i];
    }
    block_ = std::move(block);
}

void Screen::redraw_in_place(std::vector<std::string> block, std::string& out) {
    out += up(block.size() - 1);
    for (std::size_t i = 0; i < block.size(); ++i) {
        out += i == 0 ? "" : "\n";
        if (block[i] != block_[i] || i + 1 == block.size()) {
            out += block[i];
            out += "\x1b[K";
        }
    }
    block_ = std::move(block);
}

}  // namespace ddprun::agent
