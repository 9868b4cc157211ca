#pragma once

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/any_io_executor.hpp>

#include "agent/contract/output_options.hpp"
#include "agent/output/log_file.hpp"
#include "agent/output/lost_lines.hpp"
#include "base/instant.hpp"
#include "base/os/unique_fd.hpp"
#include "base/result.hpp"
#include "base/tagged.hpp"

namespace ddprun::agent {

/// The ends that a worker writes to: blocking write ends of pipes, as programs expect, or
/// pseudo-terminals. If its streams are merged, both ends are the same one. Close them once the
/// worker (or the keeper) has its copies.
struct OutputPipes {
    UniqueFd out;
    UniqueFd err;
    /// Bytes written to it are typed at `out`, which is to control the worker and to be its stdin.
    /// Not open: `out` is not such a terminal.
    UniqueFd keyboard;
    int fault = EMFILE;  ///< an errno: why there are none, where `out` is not open
};

/// Streams for who is no worker yet, like those that open() gives, so that a program finds a
/// terminal where the worker will: with our ends, of which nothing is read.
struct StandIn {
    OutputPipes workers;
    UniqueFd out;
    UniqueFd err;  ///< not open where the two are merged
};

/// The last words of a worker, as far as they are known.
struct Collected {
    /// The last bytes of its stderr, or of both streams where they are merged, at most
    /// Limits::stderr_tail_bytes_max.
    std::string stderr_tail;
    std::string stdout_tail;  ///< the same of its stdout
    std::string error_file;   ///< content of its error.json, at most Limits::error_file_bytes_max
    /// False if the disk held the output thread up for Limits::evidence_timeout: all are empty.
    bool is_complete = true;
};

/// The output of all workers together so far.
struct OutputMeasure {
    std::uint64_t bytes = 0;
    bool is_console_full = false;  ///< workers may wait for it to take what they write
};

/// The output of one worker, counted by the output thread for others.
struct OutputCount {
    static constexpr std::size_t kFirst = 32;

    std::atomic<std::uint64_t> bytes{0};
    /// When the last piece was read, nanoseconds on CLOCK_MONOTONIC; 0: none yet.
    std::atomic<std::int64_t> last_ns{0};
    /// The same of the first pieces, in order.
    std::array<std::atomic<std::int64_t>, kFirst> first_ns{};
};

/// Carries the workers' output to their log files and to the console, on a thread of its own that
/// shares nothing with the caller but posted work, so that neither a slow disk nor a stopped
/// terminal delays a beat. Every byte reaches the log file as it was written. On the console:
///
/// * without prefix the bytes of a worker that has the console to itself pass as they are, at once;
/// * without prefix the lines of several workers appear whole, as they were written;
/// * on a terminal that several share (`draws`), what Screen says: lines, bars in their places;
/// * with a prefix or as JSON lines appear whole, too. There a carriage return ends a line (as in
///   torchrun), so that progress bars show.
///
/// If lines appear whole, an unfinished line is held until its end, until
/// Limits::console_line_bytes_max, or until collect() or close(), and then gets a line end.
///
/// A console that takes its time loses nothing: its backlog is bounded, after that the workers'
/// pipes fill up and the workers wait. A console that is gone (EPIPE, EIO) is forgotten. A log
/// file that cannot be written is said, each reason at intervals (LogErrors); the rest goes on.
///
/// Nothing is waiting without bound for a log disk that hangs: what is asked again and again waits
/// once, and open() fails when Limits::slots_max workers wait for their logs.
///
/// All functions are to be called from one thread and none blocks, except the destructor.
class WorkerOutput {
public:
    /// Callbacks run on `callbacks`, possibly after this object is gone; measure() says otherwise.
    WorkerOutput(OutputOptions options, boost::asio::any_io_executor callbacks);

    /// Drains what is in the pipes, writes everything out and ends the thread. Waits for as long as
    /// the console's reader or the log disk does: give signals their default effect before. After
    /// Limits::evidence_timeout a line says that the disk is waited for.
    ~WorkerOutput();

    WorkerOutput(const WorkerOutput&) = delete;
    WorkerOutput& operator=(const WorkerOutput&) = delete;

    /// Pipes for a worker that is about to start, and a pseudo-terminal in the place of one for
    /// each stream that is shown on a terminal as it is (not tee'd, not as JSON), raw but for
    /// OutputOptions::debug; where none can be had, that is said once. Its folder `log_dir` (made
    /// with its parents, 0700), stdout.log and stderr.log in it, or output.log where the two are
    /// merged, are made on the output thread: when_ready() reports that. The links `by-rank/<rank>`
    /// to it, of the run and of the generation, follow, before the worker is collected. Existing
    /// files are appended to; a log that is full is renamed, and the oldest may go. An empty
    /// `log_dir` means no files. Fails without descriptors, or while the log disk hangs.
    [[nodiscard]] Result<OutputPipes> open(Generation generation, LocalRank local_rank, Rank rank,
                                           int world_size, const std::string& log_dir);

    /// Streams without files, of which the output thread learns nothing. Fails as open().
    [[nodiscard]] Result<StandIn> stand_in(LocalRank local_rank, Rank rank, int world_size);

    /// Calls `done` once the folders and files of all earlier open() calls exist (or have failed,
    /// which has been said). Spawn workers after it: they may write their error file at once.
    void when_ready(std::function<void()> done);

    /// After the worker has ended: everything it wrote is carried on, its unfinished lines are
    /// shown, and `done` gets its last words. The pipes stay open for its descendants. A worker
    /// that was never opened has no words.
    void collect(Generation generation, LocalRank local_rank, std::function<void(Collected)> done);

    /// `look` gets what all workers together have written so far. It is called on the output
    /// thread, where it may read more that takes time. A disk that holds the thread up holds it
    /// up; until then further ones are not called.
    void measure(std::function<void(const OutputMeasure&)> look);

    /// Returns how many bytes the newest worker of that place has written; 0 of none. Never waits.
    [[nodiscard]] std::uint64_t bytes_of(LocalRank local_rank) const;
    /// When it has written last; none: it has not.
    [[nodiscard]] std::optional<Instant> last_of(LocalRank local_rank) const;

    /// Returns the lines that this run's logs lack because writing them failed. Asks no thread.
    [[nodiscard]] std::vector<LostLog> lost() const;

    /// When the first of the newest workers has written something after that moment, as far as
    /// their first pieces show it.
    [[nodiscard]] std::optional<Instant> first_after(Instant moment) const;

    /// Which streams of the newest worker of that place are shown where say() writes to.
    [[nodiscard]] WordsShown words_shown(LocalRank local_rank) const;

    /// The generation is proven empty: carries on what is in its pipes and closes them. The end of
    /// a stream is never awaited, for another process may hold a copy.
    void close(Generation generation);

    /// The window of a console has another size: pseudo-terminals get it, and after that `done` is
    /// called: once for all calls that waited for the disk together.
    void follow_window(std::function<void()> done);

    /// The ddprun exits: run.json says so, if the run has a folder. `text` is its verdict's,
    /// `saving` how long workers took to leave when they were last asked.
    void end_run(int exit_code, std::string text, std::optional<Milliseconds> saving);

    /// Appends what the prepare command wrote to prepare.log in log_root, if that is not empty; the
    /// folder and the file are made. Then `done` is called. A failure is said, as of a log.
    void log_prepare(std::string bytes, std::function<void()> done);

    /// Adds the line of an event to the events.jsonl of the run, which comes with the run's folder.
    /// Lines that find Limits::events_waiting_max before them are left out.
    void keep_event(std::string line);

    /// Once the run has its folder: `done` gets a socket in it that listens (run_socket.hpp), or
    /// why there is none. The receiver closes it; end_run() removes its name.
    void listen(std::function<void(Result<UniqueFd>)> done);

    /// Writes the file `path` anew, whole or not at all; its folders are made. A failure is said.
    void keep(std::string path, std::string content);

    /// Writes `line` and a line end to stderr, whole, in order with the other calls. If more than
    /// Limits::say_lines_max wait for a console that takes none, further ones are dropped and the
    /// number of them is said later.
    void say(std::string line);

    /// Keeps `line` below all other lines of stderr, if that is a terminal that is drawn on; empty:
    /// no such line any more. While the disk hangs only the newest line is kept.
    void show_live(std::string line);

private:
    class Thread;
    std::unique_ptr<Thread> thread_;
    std::map<int, std::shared_ptr<OutputCount>> counts_;  ///< by local rank, as the next
    std::map<int, WordsShown> shown_;
};

}  // namespace ddprun::agent
