#include "rendezvous/events/event.hpp"

#include <array>
#include <chrono>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "rendezvous/wire/message_fields.hpp"

namespace ddprun::rdzv {

namespace {

using nlohmann::ordered_json;

constexpr std::array<std::pair<std::string_view, EventKind>, 41> kEventKindNames = {{
    {"begun", EventKind::Begun},
    {"link_up", EventKind::LinkUp},
    {"link_down", EventKind::LinkDown},
    {"joined", EventKind::Joined},
    {"waiting", EventKind::Waiting},
    {"formed", EventKind::Formed},
    {"spawned", EventKind::Spawned},
    {"main", EventKind::Main},
    {"group_ready", EventKind::GroupReady},
    {"resumed", EventKind::Resumed},
    {"first_step", EventKind::FirstStep},
    {"finished", EventKind::Finished},
    {"failure", EventKind::Failure},
    {"last_words", EventKind::LastWords},
    {"stop", EventKind::Stop},
    {"stopping", EventKind::Stopping},
    {"stopped", EventKind::Stopped},
    {"empty", EventKind::Empty},
    {"gpu_memory", EventKind::GpuMemory},
    {"preflight", EventKind::Preflight},
    {"prepare", EventKind::Prepare},
    {"prepared", EventKind::Prepared},
    {"ready", EventKind::Ready},
    {"quiet", EventKind::Quiet},
    {"hang_notice", EventKind::HangNotice},
    {"leave", EventKind::Leave},
    {"released", EventKind::Released},
    {"refused", EventKind::Refused},
    {"notice", EventKind::Notice},
    {"verdict", EventKind::Verdict},
    {"exit", EventKind::Exit},
    {"spare", EventKind::Spare},
    {"lost", EventKind::Lost},
    {"quarantine", EventKind::Quarantine},
    {"held_up", EventKind::HeldUp},
    {"durability", EventKind::Durability},
    {"restored", EventKind::Restored},
    {"operator", EventKind::Operator},
    {"checkpoint_saved", EventKind::CheckpointSaved},
    {"checkpoint_failed", EventKind::CheckpointFailed},
    {"checkpoint_behind", EventKind::CheckpointBehind},
}};

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

/// Adds an event's own fields: all but its kind and its place in a stream.
void add_fields(const Event& event, std::size_t text_bytes_max, ordered_json& object) {
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
}

/// Null: the event has no field of that name and type.
template <typename Value>
const Value* field_of(const Event& event, std::string_view name) {
    for (const EventField& field : event.fields) {
        const Value* value = std::get_if<Value>(&field.value);
        if (field.name == name && value != nullptr) {
            return value;
        }
    }
    return nullptr;
}

}  // namespace

std::string_view name_of(EventKind kind) {
    return word_of(kind, kEventKindNames);
}

std::string text_of(const Event& event, std::string_view name) {
    const std::string* text = field_of<std::string>(event, name);
    return text == nullptr ? std::string() : *text;
}

std::int64_t number_of(const Event& event, std::string_view name) {
    const std::int64_t* number = field_of<std::int64_t>(event, name);
    return number == nullptr ? 0 : *number;
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
    add_fields(event, text_bytes_max, object);
    return object.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string_view notified_as(const Event& event) {
    const bool is_hang = event.kind == EventKind::HangNotice ||
                         (event.kind == EventKind::Stop && text_of(event, "cause") == "hang");
    // The first generation has no text that says why it was formed.
    const bool is_restart = event.kind == EventKind::Formed && !text_of(event, "text").empty();
    if (is_hang) {
        return "hang";
    }
    if (is_restart) {
        return "restart";
    }
    const bool is_other = event.kind == EventKind::Spare || event.kind == EventKind::Quarantine ||
                          event.kind == EventKind::Verdict;
    return is_other ? name_of(event.kind) : std::string_view();
}

std::string notified_text(const Event& event, std::size_t text_bytes_max) {
    ordered_json object = {{"notice", notified_as(event)}, {"event", name_of(event.kind)}};
    add_fields(event, text_bytes_max, object);
    return object.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace ddprun::rdzv
