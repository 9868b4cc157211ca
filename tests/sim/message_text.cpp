#include "tests/sim/message_text.hpp"

#include <type_traits>

#include <fmt/format.h>

namespace ddprun::sim {

namespace {

std::string text_of(const rdzv::Join& m) {
    return fmt::format("Join {} store :{} token '{}' held {}", m.node.value(), m.store.port,
                       m.run_token, m.held.has_value() ? m.held->generation.value() : 0);
}
std::string text_of(const rdzv::WorkerFinished& m) {
    return fmt::format("WorkerFinished {} local {}", m.generation.value(), m.local_rank.value());
}
std::string text_of(const rdzv::WorkerFailed& m) {
    return fmt::format("WorkerFailed {} local {} code {} signal {} age {}", m.generation.value(),
                       m.local_rank.value(), m.evidence.exit_code.value_or(-1),
                       m.evidence.signal.value_or(-1), m.evidence.age.count());
}
std::string text_of(const rdzv::Stopped& m) {
    return fmt::format("Stopped {} store :{}", m.generation.value(), m.store.port);
}
std::string text_of(const rdzv::Leave& m) {
    return fmt::format("Leave {}", m.signal);
}
std::string text_of(const rdzv::Quiet& m) {
    return fmt::format("Quiet {} for {} ms", m.generation.value(), m.quiet_for.count());
}
std::string text_of(const rdzv::Reached& m) {
    return fmt::format("Reached {}: {} moments{}", m.generation.value(), m.moments.size(),
                       m.hang ? ", " + m.hang->text : "");
}
std::string text_of(const rdzv::Progress& m) {
    return fmt::format("Progress {}: {} ranks", m.generation.value(), m.ranks.size());
}
std::string text_of(const rdzv::WorkersRead& m) {
    return fmt::format("WorkersRead {}: {} bytes", m.reader, m.bytes.size());
}
std::string text_of(const rdzv::Unkillable& m) {
    return fmt::format("Unkillable {}", m.generation.value());
}
std::string text_of(const rdzv::Goodbye& m) {
    return m.unfit.empty() ? "Goodbye" : fmt::format("Goodbye: {}", m.unfit);
}
std::string text_of(const rdzv::Unfit& m) {
    return fmt::format("Unfit {} token '{}': {}", m.node.value(), m.run_token, m.why);
}
std::string text_of(const rdzv::Beat& m) {
    return fmt::format("Beat {}", m.sequence);
}
std::string text_of(const rdzv::Accepted& m) {
    return fmt::format("Accepted token '{}'", m.run_token);
}
std::string text_of(const rdzv::Refused& m) {
    return fmt::format("Refused {} ({})", m.exit_code, m.text);
}
std::string text_of(const rdzv::Waiting& m) {
    return fmt::format("Waiting '{}'", m.text);
}

std::string text_of(const rdzv::Notice& m) {
    return "Notice " + m.text;
}

std::string text_of(const rdzv::Watch& m) {
    return fmt::format("Watch every {} ms", m.interval.count());
}

std::string text_of(const rdzv::ReadWorkers& m) {
    return fmt::format("ReadWorkers {}", m.reader);
}

std::string text_of(const rdzv::ReadOn& m) {
    return fmt::format("ReadOn {}", m.reader);
}

std::string text_of(const rdzv::Happened& m) {
    return "Happened " + m.event;
}

std::string text_of(const rdzv::Redirect& m) {
    return "Redirect " + m.endpoint;
}
std::string text_of(const rdzv::Start& m) {
    return fmt::format("Start {} node {}/{} ranks {}+ of {} store :{} restarts {}",
                       m.generation.value(), m.group_rank, m.group_world_size, m.base_rank,
                       m.world_size, m.store.port, m.restart_count);
}
std::string text_of(const rdzv::Stop& m) {
    const char* const causes[] = {"failure", "hang", "grow", "leave", "fenced"};
    return fmt::format("Stop {} {} signal {} grace {} ({})", m.generation.value(),
                       causes[static_cast<int>(m.cause)], m.signal, m.grace.count(), m.why);
}
std::string text_of(const rdzv::Prepare& /*m*/) {
    return "Prepare";
}

std::string text_of(const rdzv::Released& /*m*/) {
    return "Released";
}
std::string text_of(const rdzv::Verdict& m) {
    const char* const kinds[] = {"succeeded", "failed", "stopped", "incomplete", "ended"};
    return fmt::format("Verdict {} {} ({})", kinds[static_cast<int>(m.kind)], m.exit_code, m.text);
}
std::string text_of(const rdzv::Acknowledge& m) {
    return fmt::format("Acknowledge {}", m.sequence);
}

}  // namespace

std::string message_text(const rdzv::AgentMessage& message) {
    return std::visit([](const auto& m) { return text_of(m); }, message);
}

std::string message_text(const rdzv::RendezvousMessage& message) {
    return std::visit([](const auto& m) { return text_of(m); }, message);
}

Generation generation_of(const rdzv::AgentMessage& message) {
    return std::visit(
        [](const auto& m) {
            if constexpr (requires { m.generation; }) {
                return m.generation;
            } else {
                return Generation();
            }
        },
        message);
}

}  // namespace ddprun::sim
