#include <nlohmann/json.hpp>

#include "agent/watch/report.hpp"
#include "agent/watch/wall_clock.hpp"
#include "base/signal_name.hpp"
#include "rendezvous/wire/last_words.hpp"
#include "rendezvous/wire/message_fields.hpp"

namespace ddprun::agent {

namespace {

using json = nlohmann::ordered_json;

std::string dump(const json& object) {
    return object.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

/// Exactly one of exit_code, signal and exec_errno is set.
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

json failure_json(const rdzv::FailureReport& failure, const WallClock& clock) {
    const rdzv::Evidence& evidence = failure.evidence;
    const rdzv::ErrorFile error = rdzv::parse_error_file(evidence.error_file);
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
                {"error", error.message},
                {"traceback", error.traceback},
                {"last_words", evidence.stderr_tail},
                {"last_words_stdout", evidence.stdout_tail}};
    if (failure.at > Milliseconds::zero()) {
        out["at"] = clock.iso(failure.at);
    }
    add_end(out, evidence);
    return out;
}

json failed_ranks_json(const rdzv::Verdict& verdict, const WallClock& clock) {
    json ranks = json::array();
    for (const rdzv::FailedRank& failed : verdict.failures) {
        ranks.push_back({{"rank", failed.rank.value()},
                         {"hostname", failed.hostname},
                         {"end", failed.end},
                         {"exit_code", failed.exit_code},
                         {"at", clock.iso(failed.at)},
                         {"cause", failed.cause}});
    }
    return ranks;
}

}  // namespace

std::string verdict_json(const rdzv::Verdict& verdict, const std::string& program,
                         const HeardAt& heard, const TimeSpent* spent) {
    const WallClock clock(verdict, heard);
    json out = {{"program", program},
                {"verdict", rdzv::word_of(verdict.kind, rdzv::kVerdictKindNames)},
                {"text", verdict.text},
                {"exit_code", verdict.exit_code},
                {"failures", verdict.failure_count},
                {"started", clock.iso(Milliseconds(0))},
                {"ended", clock.iso(clock.lasted())},
                {"timeline", json::array()}};
    if (verdict.first_failure) {
        out["first_failure"] = failure_json(*verdict.first_failure, clock);
        out["failed_ranks"] = failed_ranks_json(verdict, clock);
    }
    for (const rdzv::TimelineEvent& event : verdict.timeline) {
        out["timeline"].push_back(
            {{"at_ms", event.at.count()}, {"at", clock.iso(event.at)}, {"text", event.text}});
    }
    if (spent != nullptr) {
        out["time"] = rdzv::time_use_json(spent->use, spent->now, Milliseconds(heard.unix_ms));
    }
    return dump(out);
}

std::string error_file_of(const rdzv::Verdict& verdict, std::int64_t unix_seconds) {
    if (verdict.first_failure &&
        !rdzv::parse_error_file(verdict.first_failure->evidence.error_file).message.empty()) {
        return verdict.first_failure->evidence.error_file;
    }
    return dump(
        {{"message",
          {{"message", verdict.text},
           {"extraInfo", {{"py_callstack", ""}, {"timestamp", std::to_string(unix_seconds)}}}}}});
}

}  // namespace ddprun::agent
