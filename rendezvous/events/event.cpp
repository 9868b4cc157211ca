#include "rendezvous/events/event.hpp"

#include <chrono>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace ddprun::rdzv {

namespace {

using nlohmann::ordered_json;

/// The end of a text says more than its beginning: it is a worker's last words, or an error.
std::string end_of(const std::string& text, std::size_t bytes_max) {
    constexpr std::string_view kCut = "…";
    if (text.size() <= bytes_max) {
        return text;
    }
    std::size_t begin = text.size() - bytes_max + kCut.size();
    while (begin < text.size() && (static_cast<unsigned char>(text[begin]) & 0xC0U) == 0x80U) {
        ++begin;  // not in the middle of a character
    }
    return std::string(kCut) + text.substr(begin);
}

ordered_json json_of(const FieldValue& value, std::size_t text_bytes_max) {
    if (const std::string* text = std::get_if<std::string>(&value)) {
        return end_of(*text, text_bytes_max);
    }
    if (const bool* flag = std::get_if<bool>(&value)) {
        return *flag;
    }
    return std::get<std::int64_t>(value);
}

}  // namespace

std::string_view name_of(EventKind kind) {
    switch (kind) {
        case EventKind::Begun:
            return "begun";
        case EventKind::LinkUp:
            return "link_up";
        case EventKind::LinkDown:
            return "link_down";
        case EventKind::Joined:
            return "joined";
        case EventKind::Waiting:
            return "waiting";
        case EventKind::Formed:
            return "formed";
        case EventKind::Spawned:
            return "spawned";
        case EventKind::Main:
            return "main";
        case EventKind::GroupReady:
            return "group_ready";
        case EventKind::Resumed:
            return "resumed";
        case EventKind::FirstStep:
            return "first_step";
        case EventKind::Finished:
            return "finished";
        case EventKind::Failure:
            return "failure";
        case EventKind::LastWords:
            return "last_words";
        case EventKind::Stop:
            return "stop";
        case EventKind::Stopping:
            return "stopping";
        case EventKind::Stopped:
            return "stopped";
        case EventKind::Empty:
            return "empty";
        case EventKind::GpuMemory:
            return "gpu_memory";
        case EventKind::Preflight:
            return "preflight";
        case EventKind::Prepare:
            return "prepare";
        case EventKind::Prepared:
            return "prepared";
        case EventKind::Ready:
            return "ready";
        case EventKind::Quiet:
            return "quiet";
        case EventKind::Leave:
            return "leave";
        case EventKind::Released:
            return "released";
        case EventKind::Refused:
            return "refused";
        case EventKind::Notice:
            return "notice";
        case EventKind::Verdict:
            return "verdict";
        case EventKind::Exit:
            return "exit";
        case EventKind::Spare:
            return "spare";
        case EventKind::Lost:
            return "lost";
        case EventKind::Quarantine:
            return "quarantine";
        case EventKind::HeldUp:
            return "held_up";
        case EventKind::Durability:
            return "durability";
        case EventKind::Restored:
            return "restored";
    }
    return "?";
}

std::string utc_text(Milliseconds unix_time) {
    using namespace std::chrono;
    const sys_time<Milliseconds> time{unix_time};
    const sys_days day = floor<days>(time);
    const year_month_day date{day};
    const hh_mm_ss<Milliseconds> clock{time - day};
    return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", int{date.year()},
                       unsigned{date.month()}, unsigned{date.day()}, clock.hours().count(),
                       clock.minutes().count(), clock.seconds().count(),
                       clock.subseconds().count());
}

std::string event_line(const Event& event, std::uint64_t sequence, Milliseconds unix_time,
                       std::size_t text_bytes_max) {
    using std::chrono::nanoseconds;
    ordered_json object = {
        {"v", kEventSchema},
        {"seq", sequence},
        {"time", utc_text(unix_time)},
        {"mono_ns", std::chrono::duration_cast<nanoseconds>(event.at.time_since_epoch()).count()},
        {"event", name_of(event.kind)}};
    if (event.generation != Generation()) {
        object["generation"] = event.generation.value();
    }
    if (event.rank) {
        object["rank"] = event.rank->value();
    }
    if (event.step) {
        object["step"] = *event.step;
    }
    if (event.is_estimated) {
        object["estimated"] = true;
    }
    for (const EventField& field : event.fields) {
        object[std::string(field.name)] = json_of(field.value, text_bytes_max);
    }
    return object.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace ddprun::rdzv
