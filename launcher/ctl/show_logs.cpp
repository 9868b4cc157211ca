#include "launcher/ctl/show_logs.hpp"

#include <poll.h>
#include <regex.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "agent/output/line_splitter.hpp"
#include "base/limits.hpp"
#include "base/os/unique_fd.hpp"
#include "launcher/ctl/log_folder.hpp"
#include "launcher/ctl/log_reader.hpp"
#include "launcher/ctl/run_writer.hpp"

namespace ddprun::launcher {

namespace {

/// An extended regular expression, as grep -E has it.
class LinePattern {
public:
    LinePattern() = default;
    ~LinePattern() {
        if (is_set_) {
            ::regfree(&compiled_);
        }
    }
    LinePattern(const LinePattern&) = delete;
    LinePattern& operator=(const LinePattern&) = delete;

    [[nodiscard]] Result<void> set(const std::string& text) {
        const int failure = ::regcomp(&compiled_, text.c_str(), REG_EXTENDED | REG_NOSUB);
        if (failure != 0) {
            std::array<char, 256> why{};
            ::regerror(failure, &compiled_, why.data(), why.size());
            return Error{ErrorCode::InvalidArgument,
                         fmt::format("--grep {}: {}", text, why.data())};
        }
        is_set_ = true;
        return {};
    }

    [[nodiscard]] bool is_set() const { return is_set_; }

    /// The search ends at a zero byte.
    [[nodiscard]] bool is_in(const std::string& line) const {
        return ::regexec(&compiled_, line.c_str(), 0, nullptr, 0) == 0;
    }

private:
    regex_t compiled_{};
    bool is_set_ = false;
};

/// One stream of one rank on its way to the console.
class Shown {
public:
    Shown(const std::string& path, std::FILE* to, const std::optional<std::string>& prefix,
          const LinePattern& pattern, std::size_t line_bytes_max)
        : reader_(path), to_(to) {
        if (prefix || pattern.is_set()) {
            splitter_.emplace(
                [prefix = prefix.value_or(std::string()), &pattern](std::string_view line,
                                                                    std::string& out) {
                    if (!pattern.is_set() || pattern.is_in(std::string(line))) {
                        out.append(prefix).append(line).push_back('\n');
                    }
                },
                line_bytes_max);
        }
    }

    void skip_to_last(std::size_t lines) { reader_.skip_to_last(lines); }

    void show() {
        reader_.read([this](std::string_view bytes) {
            if (!splitter_) {
                write(bytes);
                return;
            }
            lines_.clear();
            splitter_->feed(bytes, lines_);
            write(lines_);
        });
    }

    void finish() {
        if (splitter_) {
            lines_.clear();
            splitter_->finish(lines_);
            write(lines_);
        }
    }

private:
    void write(std::string_view bytes) { std::fwrite(bytes.data(), 1, bytes.size(), to_); }

    LogReader reader_;
    std::FILE* to_;
    std::optional<agent::LineSplitter> splitter_;
    std::string lines_;
};

/// The newest worker of a rank. If its two streams were one, `output` is the only file; else there
/// is no file `output`.
struct RankLogs {
    std::string folder;
    std::array<Shown, 3> streams;  ///< output, stdout, stderr

    void show() {
        for (Shown& stream : streams) {
            stream.show();
        }
    }
    void finish() {
        for (Shown& stream : streams) {
            stream.finish();
        }
    }
};

class Logs {
public:
    Logs(std::string run, const LogsQuestion& question, const LinePattern& pattern, std::FILE* out,
         std::FILE* err)
        : run_(std::move(run)), question_(question), pattern_(pattern), out_(out), err_(err) {}

    Result<void> show() {
        if (question_.follows) {
            inotify_ = UniqueFd(::inotify_init1(IN_CLOEXEC));
            if (!inotify_.is_open()) {
                return system_error(errno, "watching the logs in " + run_);
            }
            watch(run_);
            watch(run_ + "/by-rank");
            writer_.emplace(run_);
        }
        // Whether the run is over is asked before its logs are read, so that nothing is missed.
        bool is_over = !question_.follows || is_run_over(run_);
        for (const int rank : wanted_ranks()) {
            open(rank, question_.last_lines);
        }
        show_all();
        bool has_writer = true;
        bool is_wanted = true;
        while (!is_over && has_writer && is_wanted && is_read()) {
            const Result<Woken> woken = wait();
            if (!woken) {
                return woken.error();
            }
            has_writer = *woken != Woken::WriterGone;
            is_wanted = *woken != Woken::ToldToEnd;
            is_over = is_run_over(run_);
            take_new_workers();
            show_all();
        }
        for (auto& [rank, logs] : ranks_) {
            logs->finish();
        }
        std::fflush(out_);
        if (!is_over && !has_writer) {
            fmt::print(err_,
                       "ddpctl: {} ends here: the ddprun that wrote it has ended without a verdict "
                       "on the job; it was killed, or its node has left the job\n",
                       run_);
        }
        return {};
    }

private:
    enum class Woken { LogsChanged, WriterGone, ToldToEnd };

    [[nodiscard]] std::vector<int> wanted_ranks() const {
        return question_.ranks.empty() ? ranks_of_run(run_) : question_.ranks;
    }

    /// With its prefix and its end a piece of a line is no longer than was asked for.
    [[nodiscard]] std::size_t line_bytes_max(std::size_t prefix) const {
        if (question_.line_bytes_max == 0) {
            return Limits{}.console_line_bytes_max;
        }
        return std::max<std::size_t>(question_.line_bytes_max, 2 * (prefix + 1)) - prefix - 1;
    }

    void open(int rank, std::optional<std::size_t> last_lines) {
        const std::string folder = folder_of_rank(run_, rank);
        if (folder.empty()) {
            return;
        }
        const bool is_alone = question_.ranks.size() == 1 && question_.host.empty();
        const std::string host = question_.host.empty() ? "" : " " + question_.host;
        const auto prefix =
            is_alone ? std::nullopt : std::optional(fmt::format("[{}{}] ", rank, host));
        const std::size_t line_max = line_bytes_max(prefix ? prefix->size() : 0);
        auto logs = std::make_unique<RankLogs>(
            RankLogs{folder,
                     {Shown(folder + "/output.log", out_, prefix, pattern_, line_max),
                      Shown(folder + "/stdout.log", out_, prefix, pattern_, line_max),
                      Shown(folder + "/stderr.log", err_, prefix, pattern_, line_max)}});
        if (question_.follows) {
            watch(folder);
        }
        if (last_lines) {
            for (Shown& stream : logs->streams) {
                stream.skip_to_last(*last_lines);
            }
        }
        ranks_[rank] = std::move(logs);
    }

    /// A rank whose link leads elsewhere has been started again; what it had said last comes first.
    void take_new_workers() {
        for (const int rank : wanted_ranks()) {
            const auto found = ranks_.find(rank);
            const std::string folder = folder_of_rank(run_, rank);
            if (found != ranks_.end() && found->second->folder == folder) {
                continue;
            }
            if (found != ranks_.end()) {
                found->second->show();
                found->second->finish();
            }
            open(rank, std::nullopt);
        }
    }

    void show_all() {
        for (auto& [rank, logs] : ranks_) {
            logs->show();
        }
        std::fflush(out_);
    }

    [[nodiscard]] bool is_read() const { return std::ferror(out_) == 0 && std::ferror(err_) == 0; }

    void watch(const std::string& folder) {
        ::inotify_add_watch(inotify_.get(), folder.c_str(), IN_CREATE | IN_MOVED_TO | IN_MODIFY);
    }

    /// Until something has changed; how much does not matter.
    [[nodiscard]] Result<Woken> wait() {
        alignas(inotify_event) std::array<char, 16384> events;
        for (;;) {
            std::array<pollfd, 3> sources{pollfd{inotify_.get(), POLLIN, 0},
                                          pollfd{writer_->descriptor(), POLLIN, 0},
                                          pollfd{question_.until_fd, POLLIN, 0}};
            const bool is_woken = ::poll(sources.data(), sources.size(), -1) > 0;
            if (is_woken && sources[2].revents != 0) {
                return Woken::ToldToEnd;
            }
            if (is_woken && sources[1].revents != 0 && writer_->is_gone()) {
                return Woken::WriterGone;
            }
            if (is_woken && sources[0].revents != 0 &&
                ::read(inotify_.get(), events.data(), events.size()) > 0) {
                return Woken::LogsChanged;
            }
            if (!is_woken && errno != EINTR) {
                return system_error(errno, "watching the logs in " + run_);
            }
        }
    }

    const std::string run_;
    const LogsQuestion& question_;
    const LinePattern& pattern_;
    std::FILE* const out_;
    std::FILE* const err_;
    UniqueFd inotify_;
    std::optional<RunWriter> writer_;  ///< only of a run that is followed
    std::map<int, std::unique_ptr<RankLogs>> ranks_;
};

/// The folder with the links by rank of what is asked for.
Result<std::string> find_asked(const LogsQuestion& question) {
    Result<std::string> run = question.run.empty()
                                  ? find_newest_run(question.log_dir, question.job, question.node)
                                  : Result<std::string>(question.run);
    if (!run || !question.generation) {
        return run;
    }
    const std::vector<std::uint64_t> there = generations_of_run(*run);
    if (std::find(there.begin(), there.end(), *question.generation) == there.end()) {
        return Error{ErrorCode::NotFound,
                     fmt::format("{} has no generation {} on this node, only {}", *run,
                                 *question.generation, fmt::join(there, ", "))};
    }
    return folder_of_generation(*run, *question.generation);
}

}  // namespace

Result<void> show_logs(const LogsQuestion& question, std::FILE* out, std::FILE* err) {
    Result<std::string> run = find_asked(question);
    const bool is_of_node = !question.run.empty();
    if (!run) {
        return is_of_node ? Result<void>() : run.error();
    }
    const std::vector<int> there = ranks_of_run(*run);
    for (const int rank : question.ranks) {
        if (!is_of_node && std::find(there.begin(), there.end(), rank) == there.end()) {
            return Error{ErrorCode::NotFound, fmt::format("{} has no rank {} on this node, only {}",
                                                          *run, rank, fmt::join(there, ", "))};
        }
    }
    LinePattern pattern;
    if (!question.pattern.empty()) {
        if (Result<void> set = pattern.set(question.pattern); !set) {
            return set;
        }
    }
    return Logs(*std::move(run), question, pattern, out, err).show();
}

}  // namespace ddprun::launcher
