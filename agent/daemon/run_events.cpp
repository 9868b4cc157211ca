#include "agent/daemon/run_events.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>
#include <variant>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "agent/daemon/resident_memory.hpp"
#include "agent/daemon/worker_activity.hpp"
#include "agent/output/run_folder.hpp"
#include "base/os/unix_time.hpp"
#include "rendezvous/events/event_fields.hpp"
#include "rendezvous/events/rank_board.hpp"
#include "rendezvous/events/save_figures.hpp"

namespace ddprun::agent {

namespace {

/// The rendezvous is told that this node lives: what its workers have come to goes along.
bool has_beat(const Effects& effects) {
    return std::any_of(effects.begin(), effects.end(), [](const Effect& effect) {
        const SendToRendezvous* send = std::get_if<SendToRendezvous>(&effect);
        return send != nullptr && std::holds_alternative<rdzv::Beat>(send->message);
    });
}

std::string line_of(const nlohmann::ordered_json& object) {
    return object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

template <typename Wanted>
bool has(const Effects& effects) {
    return std::any_of(effects.begin(), effects.end(),
                       [](const Effect& effect) { return std::holds_alternative<Wanted>(effect); });
}

/// The workers end: what they have told goes into the events of that.
bool ends_workers(const Input& input, const Effects& effects) {
    return std::holds_alternative<WorkerExited>(input) ||
           std::holds_alternative<WorkerDying>(input) || has<SignalWorkers>(effects) ||
           has<AskWorkersToLeave>(effects) || has<EmptyGeneration>(effects);
}

}  // namespace

RunEvents::RunEvents(boost::asio::io_context& io, const SupervisorOptions& options,
                     const WatchLimits& watch_limits, const std::string& program,
                     WorkerOutput& output, bool has_live_line, AgentView agent, WatchMeans means)
    : chronicle_(options, program, ::getpid()),
      saves_watch_(watch_limits),
      saves_timer_(io, [this] { look_at_saves(); }),
      progress_(watch_limits),
      output_(output),
      agent_(agent),
      means_(std::move(means)),
      teller_(io, [this] { means_.link.send(watched_progress()); }),
      node_watch_(io, options.identity.hostname, options.hang_notice, watch_limits, agent_, means_,
                  {.workers = [this] { return workers(); },
                   .progress = [this] { return progress(); },
                   .say = [this](const std::string& line) { output_.say(line); },
                   .on_hang = [this](const HangSeen& seen) { keep_hang(seen); }}),
      live_line_(watch_limits),
      live_timer_(io, [this] { show_live(); }),
      has_live_line_(has_live_line),
      log_(std::make_shared<rdzv::EventLog>(options.limits)),
      server_(io, options.limits, *this),
      options_(options),
      watch_limits_(watch_limits),
      program_(program),
      run_folder_(options.log_dir),
      readers_(io, options.limits, run_folder_, options.identity.hostname,
               {.answer = [this](const rdzv::WorkersRead& piece) { means_.link.send(piece); },
                .on_child = means_.on_child}),
      readers_here_(io, options.limits, run_folder_, options.identity.hostname,
                    {.answer = [this](const rdzv::WorkersRead& piece) { take_piece(piece); },
                     .on_child = means_.on_child}) {
    Chronicle::Events events;
    const Instant now = clock_now();
    chronicle_.begin(now, events);
    keep(now, events);
}

void RunEvents::observe(Instant now, const Input& input, const Effects& effects) {
    const bool have_ended = ends_workers(input, effects);
    if (have_ended || std::holds_alternative<Looked>(input) ||
        (moments_told_.is_heard() && has_beat(effects))) {
        look(have_ended);
    }
    for (const Effect& effect : effects) {
        if (const StartWorkers* start = std::get_if<StartWorkers>(&effect)) {
            generation_ = start->generation;
            base_rank_ = start->base_rank.value();
            world_size_ = start->world_size;
            moments_told_.begin(generation_, base_rank_);
            saves_watch_.begin(generation_, start->base_rank);
            node_watch_.begin(generation_, start->base_rank, world_size_);
        } else if (std::holds_alternative<EmptyGeneration>(effect)) {
            node_watch_.end();
        }
    }
    if (std::holds_alternative<LinkDown>(input)) {
        moments_told_.cut_off();
        readers_.stop();
    } else if (const FromRendezvous* from = std::get_if<FromRendezvous>(&input)) {
        hear(from->message, now);
    }
    Chronicle::Events events;
    chronicle_.observe(now, input, effects, events);
    keep(now, events);
    if (has<EmptyGeneration>(effects)) {
        keep_state();
    }
    const bool has_started = has<StartWorkers>(effects);
    if (has_live_line_ && has_started) {
        live_line_.begin(generation_, base_rank_ == 0, chronicle_.nodes(), world_size_);
        live_timer_.set(now);
    }
}

void RunEvents::hear(const rdzv::RendezvousMessage& message, Instant now) {
    if (const auto* accepted = std::get_if<rdzv::Accepted>(&message)) {
        tell_moments(moments_told_.met(now, accepted->hears_moments));
    } else if (const auto* watch = std::get_if<rdzv::Watch>(&message)) {
        teller_.hear(*watch);
    } else if (const auto* read = std::get_if<rdzv::ReadWorkers>(&message)) {
        readers_.hear(*read);
    } else if (const auto* on = std::get_if<rdzv::ReadOn>(&message)) {
        readers_.hear(*on);
    }
}

void RunEvents::worker_started(Generation generation, LocalRank local_rank, int pid) {
    Chronicle::Events events;
    const Instant now = clock_now();
    chronicle_.worker_started(now, generation, local_rank, pid, events);
    keep(now, events);
}

/// Workers call only when they have saved or die: what they have told is read when something
/// happens, or on request.
void RunEvents::look(bool have_ended) {
    Chronicle::Events events;
    const std::vector<WorkerMoments> workers = agent_.moments(generation_);
    chronicle_.look_at(generation_, workers, events);
    const Instant now = clock_now();
    estimate(now, have_ended, events);
    SavesWatch::News news = saves_watch_.look(now, workers, have_ended);
    events.insert(events.end(), news.events.begin(), news.events.end());
    keep(now, events);
    saves_timer_.set(saves_watch_.due());
    if (!news.line.empty()) {
        output_.say("ddprun: " + news.line);
    }
    std::optional<std::uint64_t> step;
    Duration checkpointing{};
    for (const WorkerMoments& worker : workers) {
        step = std::max(step, worker.step);
        checkpointing = std::max(checkpointing, worker.checkpointing);
    }
    log_->note_told(generation_, step, checkpointing);
    tell_moments(moments_told_.note_told(now, step, checkpointing, have_ended, news.seen));
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
    tell_moments(moments_told_.note(now, events));
}

void RunEvents::tell_moments(std::optional<rdzv::Reached> reached) {
    if (reached) {
        means_.link.send(*std::move(reached));
    }
}

/// Estimates moments of all ranks, on the node that has their store.
void RunEvents::estimate(Instant now, bool have_ended, Chronicle::Events& events) {
    if (base_rank_ != 0 || !chronicle_.needs_estimates()) {
        means_.store.end_estimates();
        return;
    }
    Estimates estimates = agent_.store.estimates();
    const bool is_settled = estimates.group_ready && (have_ended || now - *estimates.group_ready >=
                                                                        watch_limits_.group_quiet);
    if (!is_settled) {
        estimates.group_ready.reset();
    } else {
        estimates.first_step = output_.first_after(*estimates.group_ready);
    }
    chronicle_.estimate(generation_, estimates, events);
}

void RunEvents::keep_hang(const HangSeen& seen) {
    const Instant now = clock_now();
    keep(now, {rdzv::hang_event(now, generation_, seen)});
    tell_moments(moments_told_.note_hang(now, seen));
}

std::vector<WorkerState> RunEvents::workers() const {
    const std::vector<WorkerMoments> moments = agent_.moments(generation_);
    const std::vector<int> pids = agent_.pids();
    const Instant now = clock_now();
    const int store_port = agent_.generation ? agent_.generation->store_port() : 0;
    std::vector<WorkerState> workers;
    for (std::size_t i = 0; i < pids.size(); ++i) {
        WorkerState worker;
        worker.moments = i < moments.size() ? moments[i] : WorkerMoments();
        const LocalRank local_rank(static_cast<int>(i));
        worker.phase = chronicle_.phase_of(local_rank, worker.moments);
        worker.log_bytes = output_.bytes_of(local_rank);
        if (const std::optional<Instant> last = output_.last_of(local_rank)) {
            worker.output_age_ms = age_ms(now, *last);
        }
        if (pids[i] != 0) {
            worker.activity = activity_of_process(pids[i], store_port);
        }
        workers.push_back(std::move(worker));
    }
    return workers;
}

rdzv::Progress RunEvents::progress() {
    look(false);
    std::vector<WorkerState> states = workers();
    const std::vector<int> pids = agent_.pids();
    for (std::size_t i = 0; i < std::min(states.size(), pids.size()); ++i) {
        if (const auto memory = pids[i] == 0 ? std::nullopt : memory_of_process(pids[i])) {
            states[i].memory_bytes = memory->resident_bytes;
            states[i].memory_peak_bytes = memory->peak_bytes;
        }
    }
    node_watch_.add_gpu_figures(states);
    rdzv::Progress progress = progress_.tell(clock_now(), generation_, states);
    progress.memory = host_memory();
    progress.log_lost = lost_text(output_.lost());
    if (base_rank_ == 0) {
        progress.store = agent_.store.operations();
    }
    return progress;
}

rdzv::Progress RunEvents::watched_progress() {
    node_watch_.look_at_gpus();
    return progress();
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

Result<rdzv::Watched::MakeText> RunEvents::metrics(rdzv::FiguresOf /*extent*/,
                                                   std::size_t /*watchers*/) {
    return Error{ErrorCode::NotFound, "a ddprun has no /metrics: its rendezvous has them"};
}

nlohmann::ordered_json RunEvents::workers_json() const {
    using nlohmann::ordered_json;
    ordered_json workers = ordered_json::array();
    const std::vector<WorkerMoments> moments = agent_.moments(generation_);
    const std::vector<int> pids = agent_.pids();
    for (std::size_t i = 0; i < pids.size(); ++i) {
        ordered_json worker = {
            {"rank", base_rank_ + static_cast<int>(i)}, {"local_rank", i}, {"pid", pids[i]}};
        if (i < moments.size() && moments[i].step) {
            worker["step"] = *moments[i].step;
        }
        workers.push_back(std::move(worker));
    }
    return workers;
}

nlohmann::ordered_json RunEvents::state_now(const rdzv::Progress& told) const {
    using nlohmann::ordered_json;
    const Instant now = clock_now();
    rdzv::RankBoard board;
    board.take(now,
               {.node = options_.identity.node,
                .hostname = options_.identity.hostname,
                .base_rank = base_rank_},
               told);
    board.judge(now, now);
    ordered_json workers = workers_json();
    const std::size_t count = workers.size();
    ordered_json status = {
        {"v", rdzv::kEventSchema},
        {"ended", false},
        {"job", options_.identity.job.value()},
        {"program", program_},
        {"executable", options_.command.front()},
        {"run_id", options_.tracked_run},
        {"host", options_.identity.hostname},
        {"pid", ::getpid()},
        {"run", run_folder_},
        {"generation", generation_.value()},
        {"world_size", world_size_},
        {"waits_for", agent_.supervisor.explain()},
        {"workers", std::move(workers)},
        {"next_event", log_->next()},
        {"ranks", ordered_json::parse(board.told().ranks_json(count))},
        {"time", rdzv::time_use_json(log_->time_use(), clock_now(), unix_now())}};
    if (!options_.rendezvous.empty()) {
        status["rendezvous"] = options_.rendezvous;
    }
    if (const std::string slowest = board.told().slowest_json(); !slowest.empty()) {
        status["slowest"] = ordered_json::parse(slowest);
    }
    if (const std::optional<rdzv::Stall>& stall = board.stall()) {
        status["stall"] = {{"age_ms", stall->age.count()}, {"text", stall->text}};
        if (stall->culprit.rank) {
            status["stall"]["rank"] = stall->culprit.rank->value();
            status["stall"]["hostname"] = stall->culprit.host;
        }
    }
    if (log_->saves().has_any()) {
        status["checkpoint"] = rdzv::saves_json(log_->saves(), now, unix_now());
    }
    add_lost(status, output_.lost());
    if (told.memory) {
        status["memory_bytes"] = told.memory->bytes;
        status["memory_limit_bytes"] = told.memory->limit_bytes;
        if (told.memory->pressure_permille) {
            constexpr double kPermille = 1000;
            status["memory_pressure"] = *told.memory->pressure_permille / kPermille;
        }
    }
    return status;
}

Result<rdzv::Watched::MakeText> RunEvents::status(const std::string& job) {
    if (const Result<void> known = check_name(job); !known) {
        return known.error();
    }
    return MakeText([status = state_now(watched_progress())] { return line_of(status); });
}

/// For readers of the run's folder once the run is over: nothing is known of its workers then.
void RunEvents::keep_state() {
    if (run_folder_.empty()) {
        return;
    }
    nlohmann::ordered_json state = state_now(progress());
    state.erase("ended");  // Whether it is, run.json says.
    output_.keep(run_folder_ + "/" + kStateName, line_of(state));
}

void RunEvents::obey(const rdzv::OperatorOrder& order, const std::string& from,
                     OrderAnswer answer) {
    if (const Result<void> known = check_name(order.job.value()); !known) {
        answer(known.error());
        return;
    }
    means_.link.obey(order, from,
                     [this, answer = std::move(answer)](const rdzv::OperatorReply& reply,
                                                        const std::optional<rdzv::Event>& record) {
                         rdzv::OperatorReply numbered = reply;
                         if (record) {
                             numbered.event = log_->next();
                             keep(clock_now(), {*record});
                         }
                         answer(numbered);
                     });
}

/// Reads one worker's part of the page; a line that is the same is not sent again.
void RunEvents::show_live() {
    const Instant now = clock_now();
    const std::vector<WorkerMoments> moments = agent_.moments(generation_);
    output_.show_live(live_line_.text(now, moments.empty() ? WorkerMoments() : moments.front(),
                                      log_->time_use()));
    if (live_line_.is_here()) {
        live_timer_.set(now + watch_limits_.live_line_interval);
    }
}

Result<std::uint64_t> RunEvents::read_workers(const std::string& job,
                                              const rdzv::ReadWorkers& question) {
    if (const Result<void> known = check_name(job); !known) {
        return known.error();
    }
    rdzv::ReadWorkers own = question;
    own.reader = ++last_reading_;
    own.piece_bytes = static_cast<int>(options_.limits.read_piece_bytes_max);
    read_here_[own.reader] = {};
    readers_here_.hear(own);
    return own.reader;
}

void RunEvents::take_piece(const rdzv::WorkersRead& piece) {
    const auto found = read_here_.find(piece.reader);
    if (found == read_here_.end()) {
        return;
    }
    ReadHere& read = found->second;
    read.waiting += piece.error.empty() ? piece.bytes : "ddprun: " + piece.error + "\n";
    read.is_owed = true;
    read.is_over = piece.is_last;
    server_.published();
}

std::optional<std::string> RunEvents::take_read(std::uint64_t reading) {
    const auto found = read_here_.find(reading);
    if (found == read_here_.end() || (found->second.is_over && found->second.waiting.empty())) {
        return std::nullopt;
    }
    if (std::exchange(found->second.is_owed, false)) {
        readers_here_.hear(rdzv::ReadOn{.reader = reading});
    }
    return std::exchange(found->second.waiting, {});
}

void RunEvents::end_reading(std::uint64_t reading) {
    read_here_.erase(reading);
    readers_here_.hear(rdzv::ReadOn{.reader = reading, .stops = true});
}

void RunEvents::cut_readers_off() {
    readers_.cut_off();
}

void RunEvents::finish_reading(std::function<void()> done) {
    const std::size_t workers = agent_.pids().size();
    const auto end = [this, done = std::move(done)] {
        readers_.finish([this, done] { readers_here_.finish(done); });
    };
    if ((!readers_.has_any() && !readers_here_.has_any()) || workers == 0) {
        end();
        return;
    }
    // The workers' last output may be on its way to the logs.
    const auto left = std::make_shared<std::size_t>(workers);
    for (std::size_t i = 0; i < workers; ++i) {
        output_.collect(generation_, LocalRank(static_cast<int>(i)),
                        [left, end](const Collected& /*words*/) {
                            if (--*left == 0) {
                                end();
                            }
                        });
    }
}

void RunEvents::stop(std::function<void()> done) {
    live_timer_.set(std::nullopt);
    saves_timer_.set(std::nullopt);
    output_.show_live({});
    teller_.stop();
    node_watch_.end();
    readers_.stop();
    readers_here_.finish([] {});
    server_.stop(std::move(done));
}

}  // namespace ddprun::agent
