#include "launcher/ctl/merged_stacks.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/number_ranges.hpp"
#include "base/printable.hpp"
#include "base/split.hpp"
#include "base/whole_number.hpp"

namespace ddprun::launcher {

namespace {

constexpr int kRanksMax = 1 << 20;  ///< in one heading that another program has written

/// A part of a rank's file: "--- " and its title begin it, but the first, which is the kernel's.
struct Section {
    std::string_view title;
    std::string_view text;
};

std::vector<Section> sections_of(std::string_view text) {
    constexpr std::string_view kMark = "\n--- ";
    std::vector<Section> sections;
    std::string_view title = "what the kernel says of their threads";
    for (;;) {
        const std::size_t mark = text.find(kMark);
        sections.push_back({title, text.substr(0, mark)});
        if (mark == std::string_view::npos) {
            return sections;
        }
        text.remove_prefix(mark + kMark.size());
        const std::size_t end = std::min(text.find('\n'), text.size());
        title = text.substr(0, end);
        text.remove_prefix(end);
    }
}

/// Picks the section that shows most. A tool that could not do its work has shown no frame.
Section best_of(const std::vector<Section>& sections) {
    constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kWanted{
        {{"Python's", "\nThread "}, {"native", "\n#0"}}};
    for (const auto& [start, frame] : kWanted) {
        for (const Section& section : sections) {
            if (section.title.starts_with(start) &&
                section.text.find(frame) != std::string_view::npos) {
                return section;
            }
        }
    }
    return sections.front();
}

/// `line` without the `digits` behind each `word`.
std::string without_numbers(std::string line, std::string_view word,
                            std::string_view digits = "0123456789") {
    for (std::size_t at = 0; (at = line.find(word, at)) != std::string::npos;) {
        at += word.size();
        line.erase(at, line.find_first_not_of(digits, at) - at);
    }
    return line;
}

/// Lines with equal keys say the same; empty: the line has nothing that could be equal.
std::string key_of_line(std::string line) {
    constexpr std::string_view kCall = "    system call ";
    if (line.starts_with("rank ") || line.starts_with("  command ")) {
        return {};
    }
    if (line.starts_with(kCall)) {
        return line.substr(0, line.find(' ', kCall.size()));
    }
    line = line.substr(0, line.find(", has used "));
    line = without_numbers(std::move(line), "0x", "0123456789abcdefABCDEF");
    for (const std::string_view word :
         {"process ", "Process ", "thread ", "Thread ", "PID ", "TID ", "LWP ", "child of "}) {
        line = without_numbers(std::move(line), word);
    }
    return line;
}

std::string key_of(const Section& section) {
    std::string key{section.title};
    for (const std::string_view text : split(section.text, '\n')) {
        const std::string line = key_of_line(std::string(text));
        key += line.empty() ? "" : "\n" + line;
    }
    return key;
}

/// "0-3,7", as number_ranges() makes it; empty: it is no such text.
std::vector<int> numbers_in(std::string_view ranges) {
    std::vector<int> numbers;
    for (const std::string_view range : split(ranges, ',')) {
        const std::size_t dash = range.find('-');
        const auto first = whole_number<int>(range.substr(0, dash));
        const auto last =
            dash == std::string_view::npos ? first : whole_number<int>(range.substr(dash + 1));
        if (!first || !last || *first < 0 || *last < *first ||
            *last - *first >= kRanksMax - static_cast<int>(numbers.size())) {
            return {};
        }
        for (int more = 0; more <= *last - *first; ++more) {
            numbers.push_back(*first + more);
        }
    }
    return numbers;
}

/// "=== 3 ranks (0-1,3): Python's stacks, by py-spy, as of 0"; none: it is no such line.
std::optional<MergedStacks> heading_of(std::string_view line) {
    const std::size_t open = line.find(" (");
    const std::size_t close = line.find("): ");
    if (!line.starts_with("=== ") || open >= close || close == std::string_view::npos) {
        return std::nullopt;
    }
    MergedStacks block{.ranks = numbers_in(line.substr(open + 2, close - open - 2))};
    const std::string_view title = line.substr(close + 3);
    block.title = title.substr(0, block.ranks.size() > 1 ? title.rfind(", as of ") : title.npos);
    return block.ranks.empty() ? std::nullopt : std::optional(std::move(block));
}

/// "[gpu-07] ddprun: it is gone", of the rendezvous; "ddpctl: …", of a node's ddpctl.
bool is_notice(std::string_view line) {
    const bool is_of_rendezvous =
        line.starts_with('[') &&
        line.substr(std::min(line.find(']'), line.size())).starts_with("] ddprun: ");
    return is_of_rendezvous || line.starts_with("ddpctl: ");
}

void sort_merged(std::vector<MergedStacks>& merged) {
    for (MergedStacks& one : merged) {
        std::sort(one.ranks.begin(), one.ranks.end());
    }
    std::stable_sort(merged.begin(), merged.end(),
                     [](const auto& a, const auto& b) { return a.ranks.size() > b.ranks.size(); });
}

/// Without command lines, which may have secrets, and empty lines at both ends.
std::string shown_lines(std::string_view text) {
    std::string shown;
    for (const std::string_view line : split(text, '\n')) {
        if (!line.starts_with("  command ") && (!line.empty() || !shown.empty())) {
            shown += std::string(line) + "\n";
        }
    }
    shown.erase(shown.find_last_not_of('\n') + 1);
    return shown;
}

}  // namespace

std::vector<MergedStacks> merge_stacks(const std::vector<RankStacks>& stacks) {
    std::vector<MergedStacks> merged;
    std::map<std::string, std::size_t> places;
    for (const RankStacks& one : stacks) {
        const Section best = best_of(sections_of(one.text));
        const auto [place, is_new] = places.emplace(key_of(best), merged.size());
        if (is_new) {
            merged.push_back(
                {.ranks = {}, .title = std::string(best.title), .text = shown_lines(best.text)});
        }
        merged[place->second].ranks.push_back(one.rank);
    }
    sort_merged(merged);
    return merged;
}

StacksOfNodes merge_nodes(std::string_view text) {
    std::vector<MergedStacks> blocks;
    StacksOfNodes nodes;
    for (const std::string_view line : split(text, '\n')) {
        if (std::optional<MergedStacks> block = heading_of(line)) {
            blocks.push_back(*std::move(block));
        } else if (!blocks.empty() && !is_notice(line)) {
            blocks.back().text += printable(line, std::string::npos) + "\n";
        } else if (!line.empty() && std::find(nodes.notices.begin(), nodes.notices.end(), line) ==
                                        nodes.notices.end()) {
            nodes.notices.push_back(printable(line, std::string::npos));
        }
    }
    std::map<std::string, std::size_t> places;
    for (MergedStacks& block : blocks) {
        block.text = shown_lines(block.text);
        const std::string key = key_of({.title = block.title, .text = block.text});
        const auto [place, is_new] = places.emplace(key, nodes.merged.size());
        if (is_new) {
            nodes.merged.push_back(std::move(block));
        } else {
            std::vector<int>& ranks = nodes.merged[place->second].ranks;
            ranks.insert(ranks.end(), block.ranks.begin(), block.ranks.end());
        }
    }
    sort_merged(nodes.merged);
    return nodes;
}

std::string merged_stacks_text(const std::vector<MergedStacks>& merged) {
    std::string text;
    for (const MergedStacks& one : merged) {
        text += fmt::format(
            "{}=== {} rank{} ({}): {}{}\n{}\n", text.empty() ? "" : "\n", one.ranks.size(),
            one.ranks.size() == 1 ? "" : "s", number_ranges(one.ranks), one.title,
            one.ranks.size() == 1 ? "" : fmt::format(", as of {}", one.ranks.front()), one.text);
    }
    return text;
}

}  // namespace ddprun::launcher
