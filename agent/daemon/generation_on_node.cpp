#include "agent/daemon/generation_on_node.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "agent/daemon/dying.hpp"
#include "agent/daemon/evidence.hpp"
#include "base/check.hpp"
#include "base/whole_number.hpp"
#include "worker_runtime/contract/worker_environment.hpp"

namespace ddprun::agent {

GenerationOnNode::GenerationOnNode(StartWorkers start, SharedPage::OnSign on_sign,
                                   LifeWatch::OnSaves on_saves)
    : start_(std::move(start)), page_(std::move(on_sign), std::move(on_saves)) {
    for (std::size_t i = 0; i < start_.workers.size(); ++i) {
        const int local_rank = start_.workers[i].local_rank.value();
        DDP_CHECK(static_cast<std::size_t>(local_rank) == i, local_rank, i);
    }
}

void GenerationOnNode::await_folders(std::vector<OutputPipes> pipes) {
    DDP_CHECK(pipes.size() == start_.workers.size(), pipes.size(), start_.workers.size());
    stage_ = AwaitsFolders{.pipes = std::move(pipes)};
}

std::optional<std::vector<OutputPipes>> GenerationOnNode::take_pipes() {
    AwaitsFolders* waiting = std::get_if<AwaitsFolders>(&stage_);
    if (waiting == nullptr) {
        return std::nullopt;
    }
    std::vector<OutputPipes> pipes = std::move(waiting->pipes);
    stage_ = Spawned{};
    return pipes;
}

bool GenerationOnNode::end_before_spawn() {
    return take_pipes().has_value();
}

bool GenerationOnNode::looks_at_page(LocalRank local_rank) const {
    return page_.is_spared({.generation = number(), .signal = 0, .spares_asked = true}, local_rank);
}

bool GenerationOnNode::all_look_at_page() const {
    return std::all_of(
        start_.workers.begin(), start_.workers.end(),
        [this](const WorkerSpec& worker) { return looks_at_page(worker.local_rank); });
}

void GenerationOnNode::carry_out(const AskWorkersToLeave& effect) {
    if (!when_asked_) {
        when_asked_ = page_.moments();
    }
    page_.carry_out(effect);
}

SavedWork GenerationOnNode::saved_by(LocalRank local_rank) const {
    const std::vector<std::string> places = page_.checkpoints();
    const std::vector<WorkerMoments> now = page_.moments();
    const auto index = static_cast<std::size_t>(local_rank.value());
    SavedWork saved{.place = places.size() == 1 ? places.front() : ""};
    if (when_asked_ && index < when_asked_->size() && index < now.size()) {
        saved.is_newer = now[index].checkpointing > (*when_asked_)[index].checkpointing;
    }
    return saved;
}

std::vector<LocalRank> GenerationOnNode::meant_by(const SignalWorkers& effect) const {
    std::vector<LocalRank> meant;
    for (const WorkerSpec& spec : start_.workers) {
        if (!page_.is_spared(effect, spec.local_rank)) {
            meant.push_back(spec.local_rank);
        }
    }
    return meant;
}

SignsOfLife GenerationOnNode::seen(const OutputMeasure& output, Duration cpu) const {
    SignsOfLife signs{.cpu = cpu, .output_bytes = output.bytes, .is_busy = output.is_console_full};
    for (const WorkerSpec& spec : start_.workers) {
        signs.workers.push_back({.pid = pid_of(spec.local_rank),
                                 .progress = page_.progress(number(), spec.local_rank)});
    }
    return signs;
}

rdzv::Evidence GenerationOnNode::evidence(LocalRank local_rank, const WorkerEnd& end) {
    return evidence_of(end, worker(local_rank), page_.progress(number(), local_rank),
                       end.exit_code == 0 ? std::string() : kernel_log_.about(end));
}

rdzv::Evidence GenerationOnNode::evidence_before_spawn(LocalRank local_rank, int signal) const {
    WorkerEnd end{};
    end.signal = signal;
    return evidence_of(end, worker(local_rank), std::nullopt, {});
}

std::optional<FatalSignal> GenerationOnNode::worker_started(LocalRank local_rank, int pid) {
    pids_[local_rank] = pid;
    const auto early = early_signs_.extract(local_rank);
    return early ? std::optional(early.mapped()) : std::nullopt;
}

std::optional<WorkerEnd> GenerationOnNode::abnormal_end(LocalRank local_rank, FatalSignal told) {
    const int pid = pid_of(local_rank);
    if (pid == 0) {
        early_signs_[local_rank] = told;
        return std::nullopt;
    }
    return abnormal_end_of(pid, told);
}

const WorkerSpec& GenerationOnNode::worker(LocalRank local_rank) const {
    return start_.workers.at(static_cast<std::size_t>(local_rank.value()));
}

int GenerationOnNode::store_port() const {
    for (const WorkerSpec& worker : start_.workers) {
        for (const auto& [key, value] : worker.environment) {
            if (key == worker_variable::kMasterPort.key) {
                return whole_number<int>(value).value_or(0);
            }
        }
    }
    return 0;
}

int GenerationOnNode::pid_of(LocalRank local_rank) const {
    const auto found = pids_.find(local_rank);
    return found == pids_.end() ? 0 : found->second;
}

}  // namespace ddprun::agent
