#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "agent/output/console.hpp"
#include "agent/output/event_file.hpp"
#include "agent/output/json_line.hpp"
#include "agent/output/line_splitter.hpp"
#include "agent/output/line_tail.hpp"
#include "agent/output/log_errors.hpp"
#include "agent/output/lost_lines.hpp"
#include "agent/output/run_folder.hpp"
#include "agent/output/worker_output.hpp"

namespace ddprun::agent {

/// How the terminals among the consoles are drawn on; none: not at all.
[[nodiscard]] std::optional<ScreenOptions> screen_options(const OutputOptions& options);

/// The window of the pseudo-terminal of a worker that is shown on the terminal `console`.
[[nodiscard]] WindowSize workers_window(const OutputOptions& options, int console, Rank rank);

/// The end from which one stream of a worker is read.
struct StreamEnd {
    UniqueFd fd;  ///< non-blocking
    bool is_terminal = false;
    bool adds_returns = false;  ///< the terminal does, before each line feed
};

/// A worker's pipes and place, on the way to the output thread. If its streams are merged, `out`
/// carries both and `err` is not open.
struct OpenedWorker {
    Generation generation;
    LocalRank local_rank;
    Rank rank;
    std::string log_dir;
    OutputChoice choice;
    StreamEnd out;
    StreamEnd err;
    std::shared_ptr<OutputCount> count;
};

/// The half of WorkerOutput that lives on the output thread: everything here is called there, by
/// posted work or by readiness of a pipe.
class OutputPump {
public:
    /// References outlive the pump; it uses `io` until finish() has been called and run() returns.
    OutputPump(boost::asio::io_context& io, const OutputOptions& options);
    ~OutputPump();
    OutputPump(const OutputPump&) = delete;
    OutputPump& operator=(const OutputPump&) = delete;

    void open(OpenedWorker worker);
    [[nodiscard]] Collected collect(Generation generation, LocalRank local_rank);
    [[nodiscard]] OutputMeasure measure() const { return {bytes_read_, !paused_.empty()}; }
    /// Any thread.
    [[nodiscard]] std::vector<LostLog> lost() const { return lost_.told(); }
    void close(Generation generation);
    void follow_window();
    void end_run(int exit_code, const std::string& text, std::optional<Milliseconds> saving);
    void keep_event(std::string line);
    [[nodiscard]] Result<UniqueFd> listen() const;
    void log_prepare(std::string_view bytes);
    void keep(const std::string& path, const std::string& content);
    void say(const std::string& line);
    void show_live(std::string line);

    /// Drains and closes every pipe. `io` runs out of work once the console has taken everything.
    void finish();

private:
    enum class StreamKind { Stdout, Stderr, Merged };
    struct Stream;
    struct Worker;
    using Key = std::pair<Generation, LocalRank>;

    void add_stream(Worker& worker, StreamKind kind, StreamEnd end, const LineOrigin& origin,
                    const OutputChoice& choice);
    [[nodiscard]] Result<void> open_file(Stream& stream);
    void make_links();
    void open_filters(Worker& worker, const LineOrigin& origin, const OutputChoice& choice);
    void set_console(Stream& stream, const LineOrigin& origin, const OutputChoice& choice);
    void wait(const std::shared_ptr<Stream>& stream);
    void on_readable(const std::shared_ptr<Stream>& stream);
    [[nodiscard]] bool read_once(Stream& stream, std::size_t& count);
    void carry(Stream& stream, std::string_view bytes);
    void log(Stream& stream, std::string_view bytes);
    void drain(Stream& stream);
    void drain_terminal(Stream& stream);
    void finish_line(Stream& stream);
    void close_worker(Worker& worker);
    void resume_paused();
    void say_failure(const Result<void>& done);
    void say_error(const Error& error);
    [[nodiscard]] Console& err_console() { return err_console_ ? *err_console_ : out_console_; }

    boost::asio::io_context& io_;
    const OutputOptions& options_;
    Console out_console_;
    std::optional<Console> err_console_;  ///< none if stderr is the same place as stdout
    const LineWriter own_line_;           ///< for what ddprun itself says
    std::map<Key, std::unique_ptr<Worker>> workers_;
    RunFolder run_;  ///< log_root, from the first worker or line of the prepare command to the end
    EventFile events_;
    std::optional<LogFile> prepare_log_;               ///< none: nothing has been written to it
    std::set<std::pair<Rank, std::string>> unlinked_;  ///< log_dir of whose link by rank is due
    std::vector<std::shared_ptr<Stream>> paused_;      ///< not read until the console has room
    std::vector<char> buffer_;                         ///< of one read, shared by all streams
    std::string lines_;                                ///< of one read, cut and prefixed
    std::string written_;                              ///< of one read, as the worker wrote it
    std::uint64_t bytes_read_ = 0;                     ///< of all streams there ever were
    std::size_t dropped_lines_ = 0;                    ///< own lines the console did not take
    LogErrors errors_;
    LostLines lost_;
};

}  // namespace ddprun::agent
