#include "tests/scenario/render.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace ddprun::sim {

namespace {

using namespace rdzv;  // NOLINT(google-build-using-namespace): every name here is one of its

const char* name_of(StopCause cause) {
    switch (cause) {
        case StopCause::Failure:
            return "failure";
        case StopCause::Hang:
            return "hang";
        case StopCause::Grow:
            return "grow";
        case StopCause::Leave:
            return "leave";
        case StopCause::Fenced:
            return "fenced";
    }
    return "?";
}

const char* name_of(VerdictKind kind) {
    switch (kind) {
        case VerdictKind::Succeeded:
            return "succeeded";
        case VerdictKind::Failed:
            return "failed";
        case VerdictKind::Stopped:
            return "stopped";
        case VerdictKind::Incomplete:
            return "incomplete";
        case VerdictKind::Ended:
            return "ended";
    }
    return "?";
}

std::string quoted(const char* label, const std::string& text) {
    return text.empty() ? std::string() : fmt::format("; {} \"{}\"", label, text);
}

std::string text_of(const Accepted& m) {
    return m.lease.count() == 0 ? "Accepted, no beats wanted" : "Accepted";
}

std::string text_of(const Refused& m) {
    return fmt::format("Refused {} \"{}\"", m.exit_code, m.text);
}

std::string text_of(const Waiting& m) {
    return fmt::format("Waiting \"{}\"", m.text);
}

std::string text_of(const Notice& m) {
    return "Notice " + m.text;
}

std::string text_of(const Watch& m) {
    return fmt::format("Watch for {}, every {}", render_duration(m.lasts),
                       render_duration(m.interval));
}

std::string text_of(const ReadWorkers& m) {
    return fmt::format("ReadWorkers {}", m.reader);
}

std::string text_of(const ReadOn& m) {
    return fmt::format("ReadOn {}", m.reader);
}

std::string text_of(const Happened& m) {
    return "Happened " + m.event;
}

std::string text_of(const Redirect& m) {
    return "Redirect " + m.endpoint;
}

std::string text_of(const Start& m) {
    std::string text = fmt::format(
        "Start generation {}: group rank {} of {}, ranks from {} of {}, role from {} of {}, "
        "restarts {} of {}, store {}:{}",
        m.generation.value(), m.group_rank, m.group_world_size, m.base_rank, m.world_size,
        m.role_base_rank, m.role_world_size, m.restart_count, m.max_restarts, m.store.host,
        m.store.port);
    if (m.target_world_size != m.world_size) {
        text += fmt::format(", meant for {}", m.target_world_size);
    }
    if (m.memory_partner) {
        text += fmt::format(", memory partner {}", *m.memory_partner);
    }
    if (!m.admitted.empty()) {
        text += fmt::format("; admits {}", fmt::join(m.admitted, ","));
    }
    return text + quoted("why", m.why);
}

std::string text_of(const Stop& m) {
    return fmt::format("Stop generation {}, {}: signal {}, grace {}", m.generation.value(),
                       name_of(m.cause), m.signal, render_duration(m.grace)) +
           (m.within.count() == 0 ? "" : ", saves within " + render_duration(m.within)) +
           quoted("why", m.why);
}

std::string text_of(const Prepare&) {
    return "Prepare";
}

std::string text_of(const Released&) {
    return "Released";
}

std::string text_of(const Verdict& m) {
    std::string text = fmt::format("Verdict {} {} \"{}\"", name_of(m.kind), m.exit_code, m.text);
    if (m.first_failure) {
        text += fmt::format("; first of {}: rank {} (local {}) on {}", m.failure_count,
                            m.first_failure->rank.value(), m.first_failure->local_rank.value(),
                            m.first_failure->hostname) +
                quoted("last words", m.first_failure->evidence.stderr_tail);
    }
    return text;
}

std::string text_of(const Acknowledge& m) {
    return fmt::format("Acknowledge {}", m.sequence);
}

}  // namespace

std::string render(const RendezvousMessage& message) {
    return std::visit([](const auto& m) { return text_of(m); }, message);
}

std::string render(const Phase& phase) {
    static constexpr const char* kNames[] = {"Forming", "Running",  "Stopping",
                                             "Closed",  "Adopting", "Restored"};
    static_assert(std::variant_size_v<Phase> == std::size(kNames));
    return kNames[phase.index()];
}

std::string render_duration(Duration duration) {
    const auto ms = std::chrono::duration_cast<Milliseconds>(duration).count();
    if (ms % 1000 == 0) {
        return fmt::format("{}s", ms / 1000);
    }
    return ms > 1000 ? fmt::format("{}.{:03}s", ms / 1000, ms % 1000) : fmt::format("{}ms", ms);
}

}  // namespace ddprun::sim
