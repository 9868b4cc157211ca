#include "agent/output/worker_output.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <future>
#include <mutex>
#include <thread>
#include <utility>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/system/error_code.hpp>
#include <fmt/format.h>

#include "agent/output/terminal.hpp"
#include "agent/output/worker_output_thread.hpp"
#include "base/os/file_identity.hpp"
#include "base/os/signals_blocked.hpp"

namespace ddprun::agent {

namespace {

namespace asio = boost::asio;

/// One stream of a worker.
struct Ends {
    StreamEnd ours;
    UniqueFd workers;
    UniqueFd keyboard = {};  ///< as OutputPipes::keyboard
};

struct Streams {
    Ends out;
    Ends err;
};

Result<Ends> make_pipe() {
    int ends[2] = {-1, -1};
    if (::pipe2(ends, O_CLOEXEC) != 0) {
        return system_error(errno, "making the pipes of a worker");
    }
    Ends pipe{.ours = {.fd = UniqueFd(ends[0])}, .workers = UniqueFd(ends[1])};
    // Only our end: programs expect that writing waits.
    if (::fcntl(pipe.ours.fd.get(), F_SETFL, O_NONBLOCK) != 0) {
        return system_error(errno, "making a worker's pipe non-blocking");
    }
    return pipe;
}

/// Another descriptor for a worker to write to the same.
Result<Ends> second_of(const Ends& stream) {
    UniqueFd workers(::fcntl(stream.workers.get(), F_DUPFD_CLOEXEC, 3));
    if (!workers.is_open()) {
        return system_error(errno, "duplicating a worker's stream");
    }
    return Ends{.workers = std::move(workers)};
}

/// A line on its way to the output thread: of those that wait only the newest is of use.
class NewestLine {
public:
    /// True if the thread is to be told: no line waited.
    [[nodiscard]] bool put(std::string line) {
        const std::lock_guard lock(mutex_);
        return !std::exchange(line_, std::move(line)).has_value();
    }
    [[nodiscard]] std::string take() {
        const std::lock_guard lock(mutex_);
        return std::exchange(line_, std::nullopt).value_or("");
    }

private:
    std::mutex mutex_;
    std::optional<std::string> line_;
};

/// A collect() under way: answered by the output thread or, if that is held up, by the timer;
/// both on the callbacks' executor.
struct Collecting {
    Collecting(const asio::any_io_executor& executor, std::function<void(Collected)> callback)
        : timer(executor), done(std::move(callback)) {}

    void answer(Collected collected) {
        if (done) {
            timer.cancel();
            std::exchange(done, nullptr)(std::move(collected));
        }
    }

    asio::steady_timer timer;
    std::function<void(Collected)> done;
};

}  // namespace

class WorkerOutput::Thread {
public:
    Thread(OutputOptions options, asio::any_io_executor callbacks)
        : options_(std::move(options)),
          callbacks_(std::move(callbacks)),
          pump_(io_, options_),
          work_(io_.get_executor()),
          has_terminal_out_(is_terminal(options_.console_out)),
          has_terminal_err_(is_terminal(options_.console_err)),
          is_one_place_(is_same_file(options_.console_out, options_.console_err)) {
        if (const Result<TerminalModes> modes = TerminalModes::of(STDIN_FILENO);
            options_.debug && modes) {
            modes_ = *modes;
        }
        // Writing to a closed pipe is an errno in there.
        const SignalsBlocked blocked;
        thread_ = std::thread([this] { io_.run(); });
        ::pthread_setname_np(thread_.native_handle(), "output");
    }

    ~Thread() {
        std::promise<void> written;
        post([this, &written] {
            pump_.finish();
            written.set_value();
            work_.reset();
        });
        if (written.get_future().wait_for(options_.limits.evidence_timeout) !=
            std::future_status::ready) {
            tell_held_up();
        }
        thread_.join();
    }

    /// Whether a user types to this worker, and sees what it writes.
    [[nodiscard]] bool is_debugged(Rank rank) const {
        return options_.debug == rank && has_terminal_out_;
    }

    [[nodiscard]] OutputChoice choice_of(LocalRank local_rank, Rank rank, int world_size) const {
        if (is_debugged(rank)) {
            return {.is_merged = is_one_place_};
        }
        const auto found = options_.console.find(local_rank.value());
        OutputChoice choice = found == options_.console.end() ? OutputChoice{} : found->second;
        choice.keeps_lines = !options_.debug && is_another_shown(local_rank, rank, world_size);
        return options_.ranks_filter.shows(rank, world_size)
                   ? choice
                   : OutputChoice{.shows_stdout = false,
                                  .shows_stderr = false,
                                  .is_merged = choice.is_merged};
    }

    /// Whether the console shows another worker of this node.
    [[nodiscard]] bool is_another_shown(LocalRank local_rank, Rank rank, int world_size) const {
        const int base_rank = rank.value() - local_rank.value();
        return std::any_of(
            options_.console.begin(), options_.console.end(), [&](const auto& other) {
                return other.first != local_rank.value() && other.second.is_shown() &&
                       options_.ranks_filter.shows(Rank(base_rank + other.first), world_size);
            });
    }

    [[nodiscard]] WordsShown shown_of(const OutputChoice& choice) const {
        return {.out = is_one_place_ && (choice.shows_stdout || choice.is_teed_stdout),
                .err = choice.shows_stderr || choice.is_teed_stderr};
    }

    /// Both streams of a worker; where they are merged its stderr has no end of ours.
    [[nodiscard]] Result<Streams> make_streams(const OutputChoice& choice, Rank rank) {
        Result<Ends> out = make_stdout(choice, rank);
        if (!out) {
            return out.error();
        }
        Result<Ends> err = choice.is_merged ? second_of(*out) : make_stderr(choice, rank);
        if (!err) {
            return err.error();
        }
        return Streams{std::move(*out), std::move(*err)};
    }

    [[nodiscard]] Result<Ends> make_stdout(const OutputChoice& choice, Rank rank) {
        const bool is_plain = choice.shows_stdout && !choice.is_teed_stdout;
        return is_plain && has_terminal_out_ ? make_like(options_.console_out, rank) : make_pipe();
    }

    [[nodiscard]] Result<Ends> make_stderr(const OutputChoice& choice, Rank rank) {
        const bool is_plain = choice.shows_stderr && !choice.is_teed_stderr;
        return is_plain && has_terminal_err_ ? make_like(options_.console_err, rank) : make_pipe();
    }

    template <typename Work>
    void post(Work work) {
        asio::post(io_, std::move(work));
    }

    const OutputOptions options_;
    const asio::any_io_executor callbacks_;
    asio::io_context io_{1};
    OutputPump pump_;
    std::atomic<std::size_t> lines_waiting_ = 0;  ///< said, and not yet taken by the thread
    std::atomic<std::size_t> events_waiting_ = 0;
    std::atomic<int> opens_waiting_ = 0;  ///< the one that is being opened too
    std::atomic<bool> is_measure_asked_ = false;
    std::atomic<bool> is_window_asked_ = false;
    NewestLine live_line_;
    std::size_t lines_dropped_ = 0;  ///< of the caller's thread

private:
    /// Not by the thread, as all other lines: a file holds it up.
    void tell_held_up() const {
        const std::string line = fmt::format(
            "ddprun: the disk of the logs does not answer; ddprun waits until the rest of them is "
            "written to {} (Ctrl-C or SIGTERM ends it now, without the rest)\n",
            options_.log_root);
        (void)!::write(options_.console_err, line.data(), line.size());
    }

    /// A pseudo-terminal like `console`. Programs draw for people there, so none for JSON.
    [[nodiscard]] Result<Ends> make_like(int console, Rank rank) {
        if (options_.is_json) {
            return make_pipe();
        }
        const bool has_keyboard = is_debugged(rank) && console == options_.console_out;
        const std::optional<TerminalModes> modes = has_keyboard ? modes_ : std::nullopt;
        Result<PseudoTerminal> terminal = open_pseudo_terminal(
            options_.terminal_maker.c_str(), workers_window(options_, console, rank), modes);
        if (terminal) {
            UniqueFd keyboard(has_keyboard ? ::fcntl(terminal->ours.get(), F_DUPFD_CLOEXEC, 3)
                                           : -1);
            return Ends{.ours = {.fd = std::move(terminal->ours),
                                 .is_terminal = true,
                                 .adds_returns = modes && modes->adds_returns()},
                        .workers = std::move(terminal->workers),
                        .keyboard = std::move(keyboard)};
        }
        if (!std::exchange(has_said_no_terminal_, true)) {
            post([this, why = terminal.error().what] {
                pump_.say(fmt::format(
                    "ddprun: no pseudo-terminal for the workers ({}): they write to pipes, and may "
                    "show no progress bars; mount devpts, or raise the sysctl kernel.pty.max",
                    why));
            });
        }
        return make_pipe();
    }

    asio::executor_work_guard<asio::io_context::executor_type> work_;
    const bool has_terminal_out_;
    const bool has_terminal_err_;
    const bool is_one_place_;
    std::optional<TerminalModes> modes_;  ///< of the terminal that OutputOptions::debug has
    bool has_said_no_terminal_ = false;   ///< of the caller's thread
    std::thread thread_;
};

WorkerOutput::WorkerOutput(OutputOptions options, asio::any_io_executor callbacks)
    : thread_(std::make_unique<Thread>(std::move(options), std::move(callbacks))) {}

WorkerOutput::~WorkerOutput() = default;

Result<OutputPipes> WorkerOutput::open(Generation generation, LocalRank local_rank, Rank rank,
                                       int world_size, const std::string& log_dir) {
    if (thread_->opens_waiting_ >= thread_->options_.limits.slots_max) {
        return Error{ErrorCode::LimitExceeded,
                     fmt::format("the log disk does not answer: the logs of {} workers wait to be "
                                 "opened",
                                 thread_->opens_waiting_.load())};
    }
    const OutputChoice choice = thread_->choice_of(local_rank, rank, world_size);
    Result<Streams> streams = thread_->make_streams(choice, rank);
    if (!streams) {
        return streams.error();
    }
    auto& [out, err] = *streams;
    OpenedWorker opened{.generation = generation,
                        .local_rank = local_rank,
                        .rank = rank,
                        .log_dir = log_dir,
                        .choice = choice,
                        .out = std::move(out.ours),
                        .err = std::move(err.ours),
                        .count = std::make_shared<OutputCount>()};
    counts_[local_rank.value()] = opened.count;
    shown_[local_rank.value()] = thread_->shown_of(choice);
    ++thread_->opens_waiting_;
    thread_->post([thread = thread_.get(), opened = std::move(opened)]() mutable {
        thread->pump_.open(std::move(opened));
        --thread->opens_waiting_;
    });
    return OutputPipes{std::move(out.workers), std::move(err.workers), std::move(out.keyboard)};
}

Result<StandIn> WorkerOutput::stand_in(LocalRank local_rank, Rank rank, int world_size) {
    const OutputChoice choice = thread_->choice_of(local_rank, rank, world_size);
    Result<Streams> streams = thread_->make_streams(choice, rank);
    if (!streams) {
        return streams.error();
    }
    auto& [out, err] = *streams;
    return StandIn{.workers = {.out = std::move(out.workers), .err = std::move(err.workers)},
                   .out = std::move(out.ours.fd),
                   .err = std::move(err.ours.fd)};
}

void WorkerOutput::when_ready(std::function<void()> done) {
    thread_->post([callbacks = thread_->callbacks_, done = std::move(done)]() mutable {
        asio::post(callbacks, std::move(done));
    });
}

void WorkerOutput::collect(Generation generation, LocalRank local_rank,
                           std::function<void(Collected)> done) {
    const asio::any_io_executor& callbacks = thread_->callbacks_;
    auto collecting = std::make_shared<Collecting>(callbacks, std::move(done));
    collecting->timer.expires_after(thread_->options_.limits.evidence_timeout);
    collecting->timer.async_wait([collecting](boost::system::error_code error) {
        if (!error) {
            collecting->answer({.is_complete = false});
        }
    });
    thread_->post([thread = thread_.get(), callbacks, generation, local_rank,
                   collecting = std::move(collecting)]() mutable {
        Collected collected = thread->pump_.collect(generation, local_rank);
        asio::post(callbacks, [collecting = std::move(collecting),
                               collected = std::move(collected)]() mutable {
            collecting->answer(std::move(collected));
        });
    });
}

void WorkerOutput::measure(std::function<void(const OutputMeasure&)> look) {
    if (thread_->is_measure_asked_.exchange(true)) {
        return;
    }
    thread_->post([thread = thread_.get(), look = std::move(look)] {
        thread->is_measure_asked_ = false;
        look(thread->pump_.measure());
    });
}

std::uint64_t WorkerOutput::bytes_of(LocalRank local_rank) const {
    const auto found = counts_.find(local_rank.value());
    return found == counts_.end() ? 0 : found->second->bytes.load();
}

std::optional<Instant> WorkerOutput::last_of(LocalRank local_rank) const {
    const auto found = counts_.find(local_rank.value());
    const std::int64_t ns = found == counts_.end() ? 0 : found->second->last_ns.load();
    return ns == 0 ? std::nullopt : std::optional(Instant(std::chrono::nanoseconds(ns)));
}

std::vector<LostLog> WorkerOutput::lost() const {
    return thread_->pump_.lost();
}

std::optional<Instant> WorkerOutput::first_after(Instant moment) const {
    std::optional<Instant> first;
    for (const auto& [local_rank, count] : counts_) {
        for (const std::atomic<std::int64_t>& ns : count->first_ns) {
            const Instant at{std::chrono::nanoseconds(ns.load())};
            if (at > moment) {
                first = std::min(first.value_or(at), at);
                break;
            }
        }
    }
    return first;
}

WordsShown WorkerOutput::words_shown(LocalRank local_rank) const {
    const auto found = shown_.find(local_rank.value());
    return found == shown_.end() ? WordsShown{} : found->second;
}

void WorkerOutput::close(Generation generation) {
    thread_->post([thread = thread_.get(), generation] { thread->pump_.close(generation); });
}

void WorkerOutput::follow_window(std::function<void()> done) {
    if (thread_->is_window_asked_.exchange(true)) {
        return;
    }
    thread_->post([thread = thread_.get(), done = std::move(done)]() mutable {
        thread->is_window_asked_ = false;
        thread->pump_.follow_window();
        asio::post(thread->callbacks_, std::move(done));
    });
}

void WorkerOutput::end_run(int exit_code, std::string text, std::optional<Milliseconds> saving) {
    thread_->post([thread = thread_.get(), exit_code, text = std::move(text), saving] {
        thread->pump_.end_run(exit_code, text, saving);
    });
}

void WorkerOutput::keep_event(std::string line) {
    if (thread_->events_waiting_ >= thread_->options_.limits.events_waiting_max) {
        return;
    }
    ++thread_->events_waiting_;
    thread_->post([thread = thread_.get(), line = std::move(line)]() mutable {
        --thread->events_waiting_;
        thread->pump_.keep_event(std::move(line));
    });
}

void WorkerOutput::listen(std::function<void(Result<UniqueFd>)> done) {
    thread_->post([thread = thread_.get(), done = std::move(done)]() mutable {
        asio::post(thread->callbacks_,
                   [done = std::move(done), socket = thread->pump_.listen()]() mutable {
                       done(std::move(socket));
                   });
    });
}

void WorkerOutput::log_prepare(std::string bytes, std::function<void()> done) {
    thread_->post(
        [thread = thread_.get(), bytes = std::move(bytes), done = std::move(done)]() mutable {
            thread->pump_.log_prepare(bytes);
            asio::post(thread->callbacks_, std::move(done));
        });
}

void WorkerOutput::keep(std::string path, std::string content) {
    thread_->post([thread = thread_.get(), path = std::move(path), content = std::move(content)] {
        thread->pump_.keep(path, content);
    });
}

void WorkerOutput::say(std::string line) {
    if (thread_->lines_waiting_ >= thread_->options_.limits.say_lines_max) {
        ++thread_->lines_dropped_;
        return;
    }
    if (thread_->lines_dropped_ > 0) {
        line = fmt::format("ddprun: {} lines were not shown: the log disk held them up\n{}",
                           std::exchange(thread_->lines_dropped_, 0), line);
    }
    ++thread_->lines_waiting_;
    thread_->post([thread = thread_.get(), line = std::move(line)] {
        --thread->lines_waiting_;
        thread->pump_.say(line);
    });
}

void WorkerOutput::show_live(std::string line) {
    if (thread_->live_line_.put(std::move(line))) {
        thread_->post(
            [thread = thread_.get()] { thread->pump_.show_live(thread->live_line_.take()); });
    }
}

}  // namespace ddprun::agent
