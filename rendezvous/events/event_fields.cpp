#include "rendezvous/events/event_fields.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/signal_name.hpp"
#include "rendezvous/wire/message_fields.hpp"

namespace ddprun::rdzv {

std::vector<EventField> fields_of(const Evidence& evidence) {
    std::vector<EventField> fields;
    const auto add = [&fields](std::string_view name, const std::optional<int>& number) {
        if (number) {
            fields.push_back({name, std::int64_t{*number}});
        }
    };
    const auto add_text = [&fields](std::string_view name, const std::string& text) {
        if (!text.empty()) {
            fields.push_back({name, text});
        }
    };
    fields.push_back({"pid", std::int64_t{evidence.pid}});
    add("exit_code", evidence.exit_code);
    add("signal", evidence.signal);
    if (evidence.signal) {
        add_text("signal_name", std::string(signal_name(*evidence.signal)));
    }
    add("exec_errno", evidence.exec_errno);
    for (const auto& [name, is_so] :
         {std::pair("core_dumped", evidence.core_dumped),
          std::pair("keeper_lost", evidence.keeper_lost), std::pair("hung", evidence.hung)}) {
        if (is_so) {
            fields.push_back({name, true});
        }
    }
    add_text("kernel", evidence.kernel_note);
    add_text("stacks", evidence.stacks);
    add_text("logs", evidence.log_dir);
    return fields;
}

std::vector<EventField> fields_of(const Stop& stop) {
    return {{"cause", std::string(word_of(stop.cause, kStopCauseNames))},
            {"text", stop.why},
            {"grace_ms", std::int64_t{stop.grace.count()}}};
}

std::vector<EventField> fields_of(const Verdict& verdict) {
    return {{"verdict", std::string(word_of(verdict.kind, kVerdictKindNames))},
            {"text", verdict.text},
            {"exit_code", std::int64_t{verdict.exit_code}},
            {"failures", std::int64_t{verdict.failure_count}}};
}

Event hang_event(Instant at, Generation generation, const HangSeen& seen) {
    Event event{.kind = EventKind::HangNotice,
                .at = at,
                .generation = generation,
                .rank = seen.rank,
                .step = seen.step,
                .fields = {{"text", seen.text}, {"host", seen.host}}};
    if (!seen.collective.empty()) {
        event.fields.push_back({"collective", seen.collective});
    }
    return event;
}

}  // namespace ddprun::rdzv
