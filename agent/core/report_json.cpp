#include <nlohmann/json.hpp>

#include "agent/core/report.hpp"
#include "base/signal_name.hpp"
#include "rendezvous/wire/message_fields.hpp"

namespace ddprun::agent {

namespace {

using json = nlohmann::ordered_json;

std::string dump(const json& object) {
    return object.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

/// Exactly one of exit_code, signal and exec_errno is there.
void add_end(json& out, const rdzv::Evidence& evidence) {
    if (evidence.exit_code) {
        out["exit_code"] = *evidence.exit_code;
    }
    if (evidence.signal) {
        out["signal"] = *evidence.signal;
        out["signal_name"] = signal_name(*evidence.signal);
    }
    if (evidence.exec_errno) {
        out["exec_errno"] = *evidence.exec_errno;
    }
    if (evidence.progress) {
        out["last_step"] = *evidence.progress;
    }
}

json failure_json(const rdzv::FailureReport& failure) {
    const rdzv::Evidence& evidence = failure.evidence;
    json out = {{"rank", failure.rank.value()},
                {"local_rank", failure.local_rank.value()},
                {"hostname", failure.hostname},
                {"node", failure.node.value()},
                {"generation", failure.generation.value()},
                {"pid", evidence.pid},
                {"executable", evidence.program},
                {"core_dumped", evidence.core_dumped},
                {"keeper_lost", evidence.keeper_lost},
                {"hung", evidence.hung},
                {"kernel", evidence.kernel_note},
                {"stacks", evidence.stacks},
                {"logs", evidence.log_dir},
                {"error", error_file_message(evidence.error_file)},
                {"last_words", evidence.stderr_tail}};
    add_end(out, evidence);
    return out;
}

std::string_view name_of(rdzv::VerdictKind kind) {
    for (const auto& [name, value] : rdzv::kVerdictKindNames) {
        if (value == kind) {
            return name;
        }
    }
    return {};
}

}  // namespace

std::string verdict_json(const rdzv::Verdict& verdict, const std::string& program) {
    json out = {{"program", program},
                {"verdict", name_of(verdict.kind)},
                {"text", verdict.text},
                {"exit_code", verdict.exit_code},
                {"failures", verdict.failure_count},
                {"timeline", json::array()}};
    if (verdict.first_failure) {
        out["first_failure"] = failure_json(*verdict.first_failure);
    }
    for (const rdzv::TimelineEvent& event : verdict.timeline) {
        out["timeline"].push_back({{"at_ms", event.at.count()}, {"text", event.text}});
    }
    return dump(out);
}

std::string error_file_of(const rdzv::Verdict& verdict, std::int64_t unix_seconds) {
    if (verdict.first_failure &&
        !error_file_message(verdict.first_failure->evidence.error_file).empty()) {
        return verdict.first_failure->evidence.error_file;
    }
    return dump(
        {{"message",
          {{"message", verdict.text},
           {"extraInfo", {{"py_callstack", ""}, {"timestamp", std::to_string(unix_seconds)}}}}}});
}

}  // namespace ddprun::agent
