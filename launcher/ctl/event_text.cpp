#include "launcher/ctl/event_text.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <ctime>
#include <optional>
#include <vector>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/printable.hpp"
#include "launcher/ctl/json_field.hpp"
#include "rendezvous/core/first_failure.hpp"
#include "rendezvous/events/save_figures.hpp"

namespace ddprun::launcher {

namespace {

using nlohmann::json;

std::optional<int> number(const json& event, const char* name) {
    const auto field = event.find(name);
    return field != event.end() && field->is_number_integer() ? std::optional(field->get<int>())
                                                              : std::nullopt;
}

/// 0: it has no such number.
std::int64_t long_number(const json& event, const char* name) {
    const auto field = event.find(name);
    return field != event.end() && field->is_number_integer() ? field->get<std::int64_t>() : 0;
}

std::string local_time(const std::string& utc) {
    std::tm fields{};
    const char* const rest = ::strptime(utc.c_str(), "%Y-%m-%dT%H:%M:%S", &fields);
    if (rest == nullptr) {
        return utc;
    }
    std::string milliseconds(rest);
    std::erase(milliseconds, 'Z');
    return fmt::format("{:%Y-%m-%d %H:%M:%S}{}", fmt::localtime(::timegm(&fields)), milliseconds);
}

std::string where_text(const json& event) {
    const std::string generation = said(event, "generation");
    const std::string rank = said(event, "rank");
    const std::string host =
        said(event, "host").empty() ? said(event, "node") : said(event, "host");
    std::string text = generation.empty() ? "" : "generation " + generation;
    if (!rank.empty()) {
        text += (text.empty() ? "rank " : ", rank ") + rank;
    }
    return host.empty() ? text : text + (text.empty() ? "on " : " on ") + host;
}

std::string seconds_text(const json& event, const char* name) {
    constexpr double kMilliseconds = 1000;
    return fmt::format("{:g} s", number(event, name).value_or(0) / kMilliseconds);
}

/// The text that only some kinds of events have, each in words of its own.
std::string own_text(const std::string& kind, const json& event) {
    if (kind == "failure") {
        return end_text(event);
    }
    if (kind == "waiting" && said(event, "text").empty()) {
        return "for nothing any more";
    }
    if (kind == "quiet") {
        return number(event, "quiet_ms").value_or(0) > 0
                   ? "no sign of life for " + seconds_text(event, "quiet_ms")
                   : "shows signs of life again";
    }
    if (kind == "held_up") {
        return "for " + seconds_text(event, "ms");
    }
    if (kind == "checkpoint_saved") {
        return rdzv::save_text({.step = {},
                                .bytes = long_number(event, "bytes"),
                                .stall = Milliseconds(long_number(event, "stall_ms")),
                                .took = Milliseconds(long_number(event, "took_ms")),
                                .where = said(event, "where")});
    }
    if (kind == "checkpoint_failed" && said(event, "reason").empty()) {
        return "the worker's output says why";
    }
    if (kind == "checkpoint_behind" && said(event, "text").empty()) {
        return "checkpoints keep up again";
    }
    if (kind == "stopping") {
        return event.contains("asked") ? "asked to save and leave"
                                       : "signal " + said(event, "signal");
    }
    return said(event, "signal_name");
}

/// Fields that say the same in all kinds, with the word that stands before them and behind.
struct Words {
    const char* field;
    const char* before;
    const char* behind;
};
constexpr std::array kWords = {
    Words{"program", "", ""},      Words{"text", "", ""},         Words{"reason", "", ""},
    Words{"cause", "cause: ", ""}, Words{"action", "", ""},       Words{"for_s", "for ", " s"},
    Words{"by", "asked by ", ""},  Words{"step", "step ", ""},    Words{"kernel", "", ""},
    Words{"logs", "logs in ", ""}, Words{"address", "from ", ""},
};

/// "2 nodes"; empty: it does not say how many, or as a range.
std::string count_text(const json& event, const char* name, const char* one) {
    const std::optional<int> count = number(event, name);
    return count ? fmt::format("{} {}{}", *count, one, *count == 1 ? "" : "s") : "";
}

std::string size_text(const json& event) {
    const std::string nodes = count_text(event, "nodes", "node");
    const std::string workers = count_text(event, "workers", "worker");
    return nodes + (nodes.empty() || workers.empty() ? "" : ", ") + workers;
}

std::string what_text(const std::string& kind, const json& event) {
    std::vector<std::string> parts = {own_text(kind, event)};
    for (const Words& words : kWords) {
        const std::string text = said(event, words.field);
        parts.push_back(text.empty() ? text : words.before + text + words.behind);
    }
    parts.push_back(size_text(event));
    if (kind != "failure" && event.contains("exit_code")) {
        parts.push_back("exit code " + said(event, "exit_code"));
    }
    if (event.contains("estimated")) {
        parts.emplace_back("estimated");
    }
    std::erase(parts, std::string());
    return fmt::format("{}", fmt::join(parts, "; "));
}

}  // namespace

std::string end_text(const json& failure) {
    if (failure.contains("hung")) {
        return "hung";
    }
    return rdzv::describe_end({.exit_code = number(failure, "exit_code"),
                               .signal = number(failure, "signal"),
                               .exec_errno = number(failure, "exec_errno"),
                               .core_dumped = failure.contains("core_dumped"),
                               .keeper_lost = failure.contains("keeper_lost"),
                               .program = "the program"});
}

std::string event_text(std::string_view line) {
    const json event = json::parse(line, nullptr, false);
    if (!event.is_object() || !event.contains("event")) {
        return printable(line, std::string::npos);
    }
    const std::string kind = said(event, "event");
    std::string shown = kind;
    std::replace(shown.begin(), shown.end(), '_', ' ');
    const std::string where = where_text(event);
    const std::string what = what_text(kind, event);
    if (where.empty() && what.empty()) {
        return fmt::format("{}  {}", local_time(said(event, "time")), shown);
    }
    return fmt::format("{}  {:<11}  {}{}{}", local_time(said(event, "time")), shown, where,
                       where.empty() || what.empty() ? "" : ": ", what);
}

}  // namespace ddprun::launcher
