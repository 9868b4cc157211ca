#include "rendezvous/events/save_figures.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "worker_runtime/contract/worker_page.hpp"

namespace ddprun::rdzv {

namespace {

using nlohmann::ordered_json;

constexpr std::array<std::pair<std::uint64_t, std::string_view>, 3> kPlaces{{
    {kSavePlaceDisk, "disk"},
    {kSavePlaceMemory, "memory"},
    {kSavePlacePartner, "partner"},
}};

/// No word is a part of another.
constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kPlaceTexts{{
    {"disk", "on disk"},
    {"memory", "in memory"},
    {"partner", "in a partner's memory"},
}};

std::string where_of(std::uint64_t places) {
    std::string where;
    for (const auto& [bit, word] : kPlaces) {
        if ((places & bit) != 0) {
            where += where.empty() ? "" : ",";
            where += word;
        }
    }
    return where;
}

/// As a field of an event has it.
std::int64_t whole(std::uint64_t number) {
    constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    return static_cast<std::int64_t>(std::min(number, kMost));
}

std::int64_t since(std::uint64_t before, std::uint64_t now) {
    return whole(now - before);
}

/// "840 B", "1.2 GiB".
std::string bytes_text(std::int64_t bytes) {
    constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
    constexpr double kStep = 1024;
    constexpr double kTwoDigits = 10;
    auto count = static_cast<double>(bytes);
    std::size_t unit = 0;
    for (; count >= kStep && unit + 1 < kUnits.size(); ++unit) {
        count /= kStep;
    }
    return fmt::format("{:.{}f} {}", count, unit > 0 && count < kTwoDigits ? 1 : 0,
                       kUnits.at(unit));
}

Milliseconds age_of(const LastSave& save, Instant now) {
    return std::chrono::duration_cast<Milliseconds>(std::max(now - save.at, Duration::zero()));
}

}  // namespace

std::vector<Event> save_events(Instant now, Generation generation, Rank rank,
                               const SavesSeen& before, const SavesSeen& seen) {
    std::vector<Event> events;
    if (seen.saved > before.saved) {
        events.push_back({.kind = EventKind::CheckpointSaved,
                          .at = now - seen.age,
                          .generation = generation,
                          .rank = rank,
                          .step = seen.step,
                          .fields = {{"bytes", whole(seen.bytes)},
                                     {"took_ms", std::int64_t{seen.took.count()}},
                                     {"stall_ms", std::int64_t{seen.stall.count()}},
                                     {"where", where_of(seen.places)},
                                     {"saves", since(before.saved, seen.saved)}}});
    }
    if (seen.failed > before.failed) {
        events.push_back({.kind = EventKind::CheckpointFailed,
                          .at = now - seen.failed_age,
                          .generation = generation,
                          .rank = rank,
                          .step = seen.failed_step,
                          .fields = {{"saves", since(before.failed, seen.failed)},
                                     {"reason", seen.failed_reason}}});
    }
    if (seen.behind != before.behind) {
        events.push_back({.kind = EventKind::CheckpointBehind,
                          .at = now,
                          .generation = generation,
                          .rank = rank,
                          .fields = {{"text", seen.behind}}});
    }
    return events;
}

void SaveFigures::take(const Event& event) {
    const auto count =
        static_cast<std::uint64_t>(std::max(number_of(event, "saves"), std::int64_t{0}));
    switch (event.kind) {
        case EventKind::CheckpointSaved:
            saves_ += count;
            last_ = LastSave{.step = event.step,
                             .at = event.at,
                             .bytes = number_of(event, "bytes"),
                             .stall = Milliseconds(number_of(event, "stall_ms")),
                             .took = Milliseconds(number_of(event, "took_ms")),
                             .where = text_of(event, "where")};
            break;
        case EventKind::CheckpointFailed:
            failures_ += count;
            break;
        case EventKind::CheckpointBehind:
            behind_ = text_of(event, "text");
            break;
        case EventKind::Formed:
            behind_.clear();  // The saves of another generation.
            break;
        default:
            break;
    }
}

std::string save_time_text(Milliseconds time) {
    constexpr std::int64_t kSecond = 1000;
    constexpr std::int64_t kMinute = 60;
    constexpr std::int64_t kHour = 60 * kMinute;
    const std::int64_t ms = time.count();
    const std::int64_t seconds = ms / kSecond;
    if (ms < kSecond) {
        return fmt::format("{} ms", ms);
    }
    if (seconds < kMinute) {
        return fmt::format("{}.{} s", seconds, ms % kSecond / 100);
    }
    if (seconds < kHour) {
        return fmt::format("{} min {} s", seconds / kMinute, seconds % kMinute);
    }
    return fmt::format("{} h {} min", seconds / kHour, seconds % kHour / kMinute);
}

std::string save_text(const LastSave& save) {
    std::string text = fmt::format("{} in {}, stalled {}", bytes_text(save.bytes),
                                   save_time_text(save.took), save_time_text(save.stall));
    std::string_view before = ", ";
    for (const auto& [word, place] : kPlaceTexts) {
        if (save.where.find(word) != std::string::npos) {
            text += fmt::format("{}{}", before, place);
            before = " and ";
        }
    }
    return text;
}

std::string saves_text(const SaveFigures& saves, Instant now) {
    std::string text;
    if (saves.last()) {
        text = fmt::format("step {}, {}, {} ago", saves.last()->step.value_or(0),
                           save_text(*saves.last()), save_time_text(age_of(*saves.last(), now)));
    }
    if (saves.failures() > 0) {
        text += fmt::format("{}{} save{} failed", text.empty() ? "" : "; ", saves.failures(),
                            saves.failures() == 1 ? "" : "s");
    }
    if (!saves.behind().empty()) {
        text += (text.empty() ? "" : "; ") + saves.behind();
    }
    return text;
}

ordered_json saves_json(const SaveFigures& saves, Instant now, Milliseconds unix_now) {
    ordered_json object = {{"saves", saves.saves()}, {"failures", saves.failures()}};
    if (const std::optional<LastSave>& last = saves.last()) {
        const Milliseconds age = age_of(*last, now);
        object["step"] = last->step.value_or(0);
        object["time"] = utc_text(unix_now - age);
        object["age_ms"] = age.count();
        object["bytes"] = last->bytes;
        object["took_ms"] = last->took.count();
        object["stall_ms"] = last->stall.count();
        object["where"] = last->where;
    }
    if (!saves.behind().empty()) {
        object["behind"] = saves.behind();
    }
    object["text"] = saves_text(saves, now);
    return object;
}

}  // namespace ddprun::rdzv
