#include "agent/daemon/evidence.hpp"

#include <chrono>
#include <ctime>
#include <utility>

#include "agent/watch/report.hpp"
#include "base/os/unix_time.hpp"

namespace ddprun::agent {

rdzv::Evidence evidence_of(const WorkerEnd& end, const WorkerSpec& spec,
                           std::optional<std::uint64_t> progress, std::string kernel_note) {
    rdzv::Evidence evidence;
    evidence.pid = end.pid;
    evidence.exit_code = end.exit_code;
    evidence.signal = end.signal;
    evidence.exec_errno = end.exec_errno;
    evidence.core_dumped = end.core_dumped;
    evidence.program = spec.command.front();
    evidence.log_dir = spec.log_dir;
    evidence.progress = progress;
    evidence.kernel_note = std::move(kernel_note);
    return evidence;
}

namespace {

HeardAt now() {
    const auto unix_ms = unix_now().count();
    const std::time_t seconds = unix_ms / 1000;
    std::tm local{};
    ::localtime_r(&seconds, &local);
    return {.unix_ms = unix_ms, .utc_offset_s = static_cast<int>(local.tm_gmtoff)};
}

}  // namespace

void show_verdict(const rdzv::Verdict& verdict, const std::string& program,
                  const std::string& log_root, const std::string& error_file,
                  const rdzv::TimeUse& time_use, const NodeId& node, WorkerOutput& output) {
    const HeardAt heard = now();
    const TimeSpent spent{.use = time_use, .now = std::chrono::steady_clock::now()};
    WordsShown are_shown;
    if (verdict.first_failure && verdict.first_failure->node == node) {
        are_shown = output.words_shown(verdict.first_failure->local_rank);
    }
    std::string text = format_verdict(verdict, program, heard, are_shown, &spent);
    if (!text.empty()) {
        text.pop_back();  // whole lines: say() ends the last one
        output.say(std::move(text));
    }
    if (!log_root.empty()) {
        output.keep(log_root + "/report.json", verdict_json(verdict, program, heard, &spent));
    }
    if (!error_file.empty() && verdict.kind == rdzv::VerdictKind::Failed) {
        output.keep(error_file, error_file_of(verdict, heard.unix_ms / 1000));
    }
}

}  // namespace ddprun::agent
