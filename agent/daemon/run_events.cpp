#include "agent/daemon/run_events.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "agent/output/run_socket.hpp"

namespace ddprun::agent {

namespace {

Instant now_here() {
    return std::chrono::steady_clock::now();
}

Milliseconds unix_now() {
    return std::chrono::floor<Milliseconds>(std::chrono::system_clock::now().time_since_epoch());
}

/// The workers end: what they have told goes into the events of that.
bool ends_workers(const Input& input, const Effects& effects) {
    return std::holds_alternative<WorkerExited>(input) ||
           std::holds_alternative<WorkerDying>(input) || std::holds_alternative<Looked>(input) ||
           std::any_of(effects.begin(), effects.end(), [](const Effect& effect) {
               return std::holds_alternative<SignalWorkers>(effect) ||
                      std::holds_alternative<AskWorkersToLeave>(effect) ||
                      std::holds_alternative<EmptyGeneration>(effect);
           });
}

}  // namespace

RunEvents::RunEvents(boost::asio::io_context& io, const SupervisorOptions& options,
                     const std::string& program, WorkerOutput& output, Ask ask)
    : chronicle_(options, program, ::getpid()),
      output_(output),
      ask_(std::move(ask)),
      log_(std::make_shared<rdzv::EventLog>(options.limits)),
      server_(io, options.limits, *this),
      options_(options),
      program_(program),
      run_folder_(options.log_dir) {
    Chronicle::Events events;
    const Instant now = now_here();
    chronicle_.begin(now, events);
    keep(now, events);
}

void RunEvents::observe(Instant now, const Input& input, const Effects& effects) {
    if (ends_workers(input, effects)) {
        look();
    }
    for (const Effect& effect : effects) {
        if (const StartWorkers* start = std::get_if<StartWorkers>(&effect)) {
            generation_ = start->generation;
            base_rank_ = start->base_rank.value();
            world_size_ = start->world_size;
        }
    }
    Chronicle::Events events;
    chronicle_.observe(now, input, effects, events);
    keep(now, events);
}

void RunEvents::worker_started(Generation generation, LocalRank local_rank, int pid) {
    Chronicle::Events events;
    const Instant now = now_here();
    chronicle_.worker_started(now, generation, local_rank, pid, events);
    keep(now, events);
}

/// Workers do not call: what they have told is read when something happens, or somebody asks.
void RunEvents::look() {
    Chronicle::Events events;
    chronicle_.look_at(generation_, ask_.moments(generation_), events);
    keep(now_here(), events);
}

void RunEvents::keep(Instant now, const Chronicle::Events& events) {
    if (events.empty()) {
        return;
    }
    const Milliseconds unix_time = unix_now();
    for (const rdzv::Event& event : events) {
        output_.keep_event(log_->add(event, now, unix_time));
    }
    server_.published();
}

void RunEvents::begin_to_answer() {
    if (run_folder_.empty() || std::exchange(is_answering_, true)) {
        return;
    }
    output_.listen([this](Result<UniqueFd> socket) {
        const Result<void> started =
            socket ? server_.start(*std::move(socket)) : Result<void>(socket.error());
        if (!started) {
            output_.say(fmt::format(
                "ddprun: {}; ddpctl cannot ask this run, its events are in {}/events.jsonl",
                started.error().what, run_folder_));
        }
    });
}

Result<void> RunEvents::check_name(const std::string& job) const {
    const std::string& own = options_.identity.job.value();
    return job.empty() || job == own
               ? Result<void>()
               : Error{ErrorCode::NotFound, fmt::format("job {} is not here, {} is", job, own)};
}

Result<std::shared_ptr<const rdzv::EventLog>> RunEvents::events(const std::string& job) {
    if (const Result<void> known = check_name(job); !known) {
        return known.error();
    }
    return std::shared_ptr<const rdzv::EventLog>(log_);
}

Result<std::string> RunEvents::status(const std::string& job) {
    if (const Result<void> known = check_name(job); !known) {
        return known.error();
    }
    look();
    using nlohmann::ordered_json;
    ordered_json workers = ordered_json::array();
    const std::vector<WorkerMoments> moments = ask_.moments(generation_);
    const std::vector<int> pids = ask_.pids();
    for (std::size_t i = 0; i < pids.size(); ++i) {
        ordered_json worker = {
            {"rank", base_rank_ + static_cast<int>(i)}, {"local_rank", i}, {"pid", pids[i]}};
        if (i < moments.size() && moments[i].step) {
            worker["step"] = *moments[i].step;
        }
        workers.push_back(std::move(worker));
    }
    const ordered_json status = {
        {"v", rdzv::kEventSchema},
        {"job", options_.identity.job.value()},
        {"program", program_},
        {"executable", options_.command.front()},
        {"run_id", options_.tracked_run},
        {"host", options_.identity.hostname},
        {"pid", ::getpid()},
        {"run", run_folder_},
        {"generation", generation_.value()},
        {"world_size", world_size_},
        {"waits_for", ask_.waits_for()},
        {"workers", std::move(workers)},
        {"next_event", log_->next()},
        {"time", rdzv::time_use_json(log_->time_use(), now_here(), unix_now())}};
    return status.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace ddprun::agent
