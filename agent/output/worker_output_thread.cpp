#include "agent/output/worker_output_thread.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include <boost/asio/post.hpp>
#include <boost/system/error_code.hpp>
#include <fmt/format.h>

#include "agent/output/added_returns.hpp"
#include "agent/output/line_prefix.hpp"
#include "agent/output/log_file.hpp"
#include "agent/output/run_socket.hpp"
#include "agent/output/terminal.hpp"
#include "agent/output/worker_output_files.hpp"
#include "agent/output/worker_output_filter.hpp"
#include "base/check.hpp"
#include "base/os/file_identity.hpp"
#include "base/os/give_to_loop.hpp"
#include "base/os/unix_time.hpp"

namespace ddprun::agent {

namespace {

/// A pipe's usual capacity: one read empties it.
constexpr std::size_t kReadBytes = std::size_t{64} << 10;
/// Full reads of one stream before the others have their turn.
constexpr int kReadsPerTurn = 4;

LineWriter json_lines(JsonLine json) {
    return [json = std::move(json)](std::string_view line, std::string& out) {
        json.append(unix_now(), line, out);
    };
}

/// Writes ddprun's own lines. A JSON line names ddprun as its stream already.
LineWriter own_lines(const OutputOptions& options) {
    if (!options.is_json) {
        return with_prefix({});
    }
    return [write = json_lines(JsonLine(options.hostname, "ddprun", {}))](std::string_view line,
                                                                          std::string& out) {
        constexpr std::string_view kName = "ddprun: ";
        write(line.starts_with(kName) ? line.substr(kName.size()) : line, out);
    };
}

void note_read(OutputCount& count, std::size_t bytes) {
    const std::chrono::nanoseconds now = std::chrono::steady_clock::now().time_since_epoch();
    count.bytes += bytes;
    count.last_ns = now.count();
    if (count.first_ns.back().load(std::memory_order_relaxed) != 0) {
        return;
    }
    for (std::atomic<std::int64_t>& ns : count.first_ns) {
        if (ns.load(std::memory_order_relaxed) == 0) {
            ns = now.count();
            return;
        }
    }
}

}  // namespace

std::optional<ScreenOptions> screen_options(const OutputOptions& options) {
    if (!options.draws || options.is_json) {
        return std::nullopt;
    }
    return ScreenOptions{.has_prefixes = options.prefixes,
                         .host = options.prefix_host,
                         .folds = options.folds,
                         .limits = options.limits};
}

WindowSize workers_window(const OutputOptions& options, int console, Rank rank) {
    const std::optional<ScreenOptions> screen = screen_options(options);
    const WindowSize window = window_of(console);
    return screen ? window_behind_prefix(*screen, window, rank) : window;
}

/// One pipe of a worker. Shared with the wait for its readiness, which may outlive it by a moment.
struct OutputPump::Stream {
    Stream(boost::asio::io_context& io, StreamKind kind_, std::size_t tail_bytes_max)
        : kind(kind_), pipe(io), tail(tail_bytes_max) {}

    [[nodiscard]] std::string_view name() const {
        return kind == StreamKind::Stdout   ? "stdout"
               : kind == StreamKind::Stderr ? "stderr"
                                            : "output";
    }

    const StreamKind kind;
    bool is_terminal = false;  ///< `pipe` is the master of a pseudo-terminal
    boost::asio::posix::stream_descriptor pipe;
    std::string log_dir;  ///< where its file is; empty: it has none
    std::optional<LogFile> file;
    Rank rank;
    Console* console = nullptr;            ///< null: not shown
    std::optional<Screen::Source> source;  ///< of the console's screen, if it has one
    std::optional<LineSplitter> splitter;  ///< none: raw
    LineTail tail;                         ///< its last words
    std::optional<LineFilter> filter;      ///< keeps some lines apart
    bool is_ended = false;                 ///< all write ends are closed
    std::optional<AddedReturns> returns;   ///< the terminal adds them to what is written
    std::shared_ptr<OutputCount> count;    ///< of its worker
};

struct OutputPump::Worker {
    std::vector<std::shared_ptr<Stream>> streams;  ///< stdout and stderr, or both merged
    std::string log_dir;
};

OutputPump::OutputPump(boost::asio::io_context& io, const OutputOptions& options)
    : io_(io),
      options_(options),
      out_console_(io, options.console_out, screen_options(options), [this] { resume_paused(); }),
      own_line_(own_lines(options)),
      run_(options.log_root, {.program = options.program,
                              .job = options.job,
                              .hostname = options.hostname,
                              .pid = ::getpid(),
                              .rendezvous = options.rendezvous,
                              .machine = read_machine_identity()}),
      events_(options.log_root, options.limits),
      buffer_(kReadBytes) {
    if (!is_same_file(options.console_out, options.console_err)) {
        err_console_.emplace(io, options.console_err, screen_options(options),
                             [this] { resume_paused(); });
    }
}

OutputPump::~OutputPump() = default;

void OutputPump::open(OpenedWorker opened) {
    auto worker = std::make_unique<Worker>();
    worker->log_dir = std::move(opened.log_dir);
    const LineOrigin origin{opened.rank, opened.local_rank, opened.generation};
    if (opened.err.fd.is_open()) {
        add_stream(*worker, StreamKind::Stdout, std::move(opened.out), origin, opened.choice);
        add_stream(*worker, StreamKind::Stderr, std::move(opened.err), origin, opened.choice);
    } else {
        add_stream(*worker, StreamKind::Merged, std::move(opened.out), origin, opened.choice);
    }
    if (!worker->log_dir.empty()) {
        for (const std::shared_ptr<Stream>& stream : worker->streams) {
            stream->log_dir = worker->log_dir;
            say_failure(open_file(*stream));
        }
        open_filters(*worker, origin, opened.choice);
    }
    for (const std::shared_ptr<Stream>& stream : worker->streams) {
        stream->count = opened.count;
        wait(stream);
    }
    const bool is_new =
        workers_.emplace(Key(opened.generation, opened.local_rank), std::move(worker)).second;
    DDP_CHECK(is_new, opened.generation.value(), opened.local_rank.value());
}

void OutputPump::add_stream(Worker& worker, StreamKind kind, StreamEnd end,
                            const LineOrigin& origin, const OutputChoice& choice) {
    auto stream = std::make_shared<Stream>(io_, kind, options_.limits.stderr_tail_bytes_max);
    stream->is_terminal = end.is_terminal;
    if (end.adds_returns) {
        stream->returns.emplace();
    }
    stream->rank = origin.rank;
    if (const Result<void> given = give_to_loop(stream->pipe, std::move(end.fd)); !given) {
        // It has no reader any more: the worker is told by its next write.
        say_error({given.error().code, fmt::format("the output of rank {} is not read: {}",
                                                   origin.rank.value(), given.error().what)});
    }
    set_console(*stream, origin, choice);
    worker.streams.push_back(std::move(stream));
}

void OutputPump::set_console(Stream& stream, const LineOrigin& origin, const OutputChoice& choice) {
    const bool is_err = stream.kind == StreamKind::Stderr;
    const bool is_teed = is_err ? choice.is_teed_stderr : choice.is_teed_stdout;
    if (!is_teed && !(is_err ? choice.shows_stderr : choice.shows_stdout)) {
        return;
    }
    stream.console = is_err ? &err_console() : &out_console_;
    std::optional<std::string> own_prefix;
    if (is_teed && (!options_.prefixes || options_.template_wins)) {
        own_prefix = torchrun_prefix(options_.prefix_template, options_.role, options_.hostname,
                                     origin.rank, origin.local_rank);
    }
    const std::size_t line_bytes_max = options_.limits.console_line_bytes_max;
    if (options_.is_json) {
        stream.splitter.emplace(json_lines(JsonLine(options_.hostname, stream.name(), origin)),
                                line_bytes_max);
    } else if (stream.console->has_screen()) {
        stream.source = stream.console->add(origin.rank, std::move(own_prefix));
    } else if (own_prefix) {
        stream.splitter.emplace(with_prefix(std::move(*own_prefix)), line_bytes_max);
    } else if (options_.prefixes) {
        stream.splitter.emplace(with_prefix(node_prefix(options_.hostname, origin.rank)),
                                line_bytes_max);
    } else if (choice.keeps_lines) {
        stream.splitter.emplace(with_prefix({}), line_bytes_max, Returns::Stay);
    }
}

Result<void> OutputPump::open_file(Stream& stream) {
    if (const Result<void> made = make_folders(stream.log_dir); !made) {
        return made;
    }
    Result<LogFile> file =
        LogFile::open(fmt::format("{}/{}.log", stream.log_dir, stream.name()), options_.rotation);
    if (!file) {
        return file.error();
    }
    stream.file = std::move(*file);
    if (options_.log_root.empty()) {
        return {};
    }
    // No worker that starts needs its link: all are made when all files are open.
    if (unlinked_.empty()) {
        boost::asio::post(io_, [this] { make_links(); });
    }
    unlinked_.emplace(stream.rank, stream.log_dir);
    return {};
}

void OutputPump::make_links() {
    if (unlinked_.empty()) {
        return;
    }
    // Held before the first link: a run with links and without a lock has lost its ddprun.
    say_failure(run_.begin(unix_now()));
    say_failure(events_.begin());
    for (const auto& [rank, log_dir] : std::exchange(unlinked_, {})) {
        const std::string generation = log_dir.substr(0, log_dir.rfind('/'));
        for (const std::string& folder : {options_.log_root, generation}) {
            say_failure(link_by_rank(folder, rank, log_dir));
        }
    }
}

void OutputPump::open_filters(Worker& worker, const LineOrigin& origin,
                              const OutputChoice& choice) {
    for (const std::shared_ptr<Stream>& stream : worker.streams) {
        const bool is_err = stream->kind == StreamKind::Stderr;
        const std::vector<std::string>& texts =
            is_err ? options_.stderr_filters : options_.stdout_filters;
        if (texts.empty() || !(is_err ? choice.is_teed_stderr : choice.is_teed_stdout)) {
            continue;
        }
        const std::string folder = worker.log_dir.substr(0, worker.log_dir.rfind('/'));
        Result<LineFilter> filter =
            LineFilter::open(fmt::format("{}/filtered_{}.log", folder, stream->name()), texts,
                             torchrun_prefix(options_.prefix_template, options_.role,
                                             options_.hostname, origin.rank, origin.local_rank),
                             options_.limits.console_line_bytes_max);
        if (filter) {
            stream->filter = std::move(*filter);
        } else {
            say_error(filter.error());
        }
    }
}

void OutputPump::wait(const std::shared_ptr<Stream>& stream) {
    stream->pipe.async_wait(boost::asio::posix::descriptor_base::wait_read,
                            [this, stream](boost::system::error_code error) {
                                // A wait that had ended just before close() reports no error.
                                if (!error && stream->pipe.is_open()) {
                                    on_readable(stream);
                                }
                            });
}

void OutputPump::on_readable(const std::shared_ptr<Stream>& stream) {
    std::size_t count = kReadBytes;
    for (int reads = 0; reads < kReadsPerTurn && count == kReadBytes; ++reads) {
        if (!read_once(*stream, count)) {
            return;
        }
    }
    if (stream->console != nullptr &&
        stream->console->sink().backlog() >= options_.limits.console_backlog_bytes_max) {
        paused_.push_back(stream);
        return;
    }
    wait(stream);
}

/// Reads what one read gives and carries it on. False if nothing will ever come again.
bool OutputPump::read_once(Stream& stream, std::size_t& count) {
    count = 0;
    const ssize_t got = ::read(stream.pipe.native_handle(), buffer_.data(), buffer_.size());
    if (got < 0 && errno != EIO) {
        return errno == EAGAIN || errno == EINTR;
    }
    if (got <= 0) {  // EIO: no process has the worker's end of a pseudo-terminal any more
        stream.is_ended = true;
        return false;
    }
    count = static_cast<std::size_t>(got);
    bytes_read_ += count;
    note_read(*stream.count, count);
    carry(stream, std::string_view(buffer_.data(), count));
    return true;
}

void OutputPump::carry(Stream& stream, std::string_view bytes) {
    if (stream.returns) {
        written_.clear();
        stream.returns->remove(bytes, written_);
        log(stream, written_);
    } else {
        log(stream, bytes);
    }
    if (stream.console == nullptr) {
        return;
    }
    if (stream.source) {
        stream.console->feed(*stream.source, bytes);
        return;
    }
    if (!stream.splitter) {
        stream.console->sink().write(bytes);
        return;
    }
    lines_.clear();
    stream.splitter->feed(bytes, lines_);
    stream.console->sink().write(lines_);
}

/// Writes the worker's output to its log.
void OutputPump::log(Stream& stream, std::string_view bytes) {
    Result<void> logged;
    std::string_view left = stream.log_dir.empty() ? std::string_view() : bytes;
    if (!stream.file && !stream.log_dir.empty()) {
        logged = open_file(stream);  // Perhaps there is room by now.
    }
    if (stream.file) {
        logged = stream.file->take(left);
    }
    say_failure(logged);
    if (!left.empty()) {
        lost_.add(stream.rank, left, logged.error());
    }
    stream.tail.add(bytes);
    if (stream.filter) {
        say_failure(stream.filter->feed(bytes));
    }
}

void OutputPump::drain(Stream& stream) {
    if (stream.is_terminal) {
        drain_terminal(stream);
        return;
    }
    // Only what waits there now: a descendant that goes on writing must not hold us here for ever.
    int available = 0;
    if (stream.is_ended || ::ioctl(stream.pipe.native_handle(), FIONREAD, &available) != 0) {
        return;
    }
    std::size_t left = static_cast<std::size_t>(available);
    while (left > 0) {
        std::size_t count = 0;
        if (!read_once(stream, count) || count == 0) {
            return;
        }
        left -= std::min(left, count);
    }
}

/// Written bytes pass through a queue of the kernel that FIONREAD does not count. A read that finds
/// nothing has waited for that queue.
void OutputPump::drain_terminal(Stream& stream) {
    for (std::size_t left = options_.limits.terminal_bytes_max; left > 0 && !stream.is_ended;) {
        std::size_t count = 0;
        if (!read_once(stream, count) || count == 0) {
            return;
        }
        left -= std::min(left, count);
    }
}

void OutputPump::finish_line(Stream& stream) {
    if (stream.returns) {
        written_.clear();
        stream.returns->finish(written_);
        log(stream, written_);
    }
    if (stream.filter) {
        say_failure(stream.filter->finish());
    }
    if (stream.source) {
        stream.console->finish(*stream.source);
    } else if (stream.splitter) {
        lines_.clear();
        stream.splitter->finish(lines_);
        stream.console->sink().write(lines_);
    }
}

Collected OutputPump::collect(Generation generation, LocalRank local_rank) {
    make_links();
    const auto found = workers_.find(Key(generation, local_rank));
    if (found == workers_.end()) {
        return {};
    }
    Worker& worker = *found->second;
    Collected collected;
    for (const std::shared_ptr<Stream>& stream : worker.streams) {
        drain(*stream);
        finish_line(*stream);
        std::string& tail =
            stream->kind == StreamKind::Stdout ? collected.stdout_tail : collected.stderr_tail;
        tail = stream->tail.text();
    }
    if (!worker.log_dir.empty()) {
        collected.error_file =
            read_error_file(worker.log_dir + "/error.json", options_.limits.error_file_bytes_max);
    }
    return collected;
}

void OutputPump::close(Generation generation) {
    const auto first = workers_.lower_bound(Key(generation, LocalRank(0)));
    auto last = first;
    for (; last != workers_.end() && last->first.first == generation; ++last) {
        close_worker(*last->second);
    }
    workers_.erase(first, last);
}

void OutputPump::close_worker(Worker& worker) {
    for (const std::shared_ptr<Stream>& stream : worker.streams) {
        drain(*stream);
        finish_line(*stream);
        if (stream->source) {
            stream->console->remove(*stream->source);
        }
        boost::system::error_code ignored;
        stream->pipe.close(ignored);
        paused_.erase(std::remove(paused_.begin(), paused_.end(), stream), paused_.end());
    }
}

void OutputPump::follow_window() {
    out_console_.follow_window();
    if (err_console_) {
        err_console_->follow_window();
    }
    for (const auto& [key, worker] : workers_) {
        for (const std::shared_ptr<Stream>& stream : worker->streams) {
            if (stream->is_terminal) {
                const bool is_err = stream->kind == StreamKind::Stderr;
                set_window(
                    stream->pipe.native_handle(),
                    workers_window(options_, is_err ? options_.console_err : options_.console_out,
                                   stream->rank));
            }
        }
    }
}

void OutputPump::resume_paused() {
    std::vector<std::shared_ptr<Stream>> resumed;
    resumed.swap(paused_);
    for (const std::shared_ptr<Stream>& stream : resumed) {
        wait(stream);
    }
}

void OutputPump::end_run(int exit_code, const std::string& text,
                         std::optional<Milliseconds> saving) {
    say_failure(run_.end(unix_now(), exit_code, text, saving, lost_.told()));
    if (run_.has_begun()) {
        say_failure(events_.begin());
    }
}

void OutputPump::keep_event(std::string line) {
    say_failure(events_.add(std::move(line)));
}

Result<UniqueFd> OutputPump::listen() const {
    return listen_in_run(options_.log_root);
}

void OutputPump::log_prepare(std::string_view bytes) {
    if (options_.log_root.empty()) {
        return;
    }
    if (!prepare_log_) {
        say_failure(run_.begin(unix_now()));
        Result<LogFile> file = LogFile::open(options_.log_root + "/prepare.log", options_.rotation);
        if (!file) {
            say_error(file.error());
            return;
        }
        prepare_log_ = std::move(*file);
    }
    say_failure(prepare_log_->append(bytes));
}

void OutputPump::keep(const std::string& path, const std::string& content) {
    say_failure(replace_file(path, content));
}

void OutputPump::say(const std::string& line) {
    Console& console = err_console();
    if (console.sink().backlog() >= 2 * options_.limits.console_backlog_bytes_max) {
        ++dropped_lines_;
        return;
    }
    std::string text;
    if (dropped_lines_ > 0) {
        own_line_(fmt::format("ddprun: {} lines were not shown: the console did not take them",
                              std::exchange(dropped_lines_, 0)),
                  text);
    }
    own_line_(line, text);
    console.say(text);
}

/// A terminal that takes nothing is not sent more and more of what is of no use later.
void OutputPump::show_live(std::string line) {
    if (err_console().sink().backlog() == 0) {
        err_console().set_foot(std::move(line));
    }
}

void OutputPump::say_failure(const Result<void>& done) {
    if (!done) {
        say_error(done.error());
    }
}

void OutputPump::say_error(const Error& error) {
    if (const auto line = errors_.take(std::chrono::steady_clock::now(), error)) {
        say(*line);
    }
}

void OutputPump::finish() {
    for (const auto& [key, worker] : workers_) {
        close_worker(*worker);
    }
    workers_.clear();
}

}  // namespace ddprun::agent
