#include "launcher/run/old_runs.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <utility>

#include <fmt/format.h>

#include "base/os/read_files.hpp"
#include "base/printable.hpp"

namespace ddprun::launcher {

OldRuns::OldRuns(boost::asio::io_context& io, const Limits& limits, Events events)
    : limits_(limits),
      events_(std::move(events)),
      program_(io, {.on_child = [this](int pid) { events_.on_child(pid); },
                    .on_end = [this](const std::optional<siginfo_t>& end) { ended(end); }}),
      deadline_(io, [this] {
          is_under_way_ = false;
          program_.cancel();
          std::exchange(on_done_, {})();
      }) {}

void OldRuns::begin(const std::string& log_dir, const std::string& run, std::size_t kept) {
    if (const Result<void> started = start(log_dir, run, kept); !started) {
        warn(started.error().what);
        return;
    }
    is_under_way_ = true;
}

Result<void> OldRuns::start(const std::string& log_dir, const std::string& run, std::size_t kept) {
    Result<std::string> ddpctl = path_beside_us("ddpctl");
    if (!ddpctl) {
        return ddpctl.error();
    }
    said_ = UniqueFd(::memfd_create("ddpctl clean", MFD_CLOEXEC));
    const UniqueFd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
    if (!said_.is_open() || !nothing.is_open()) {
        return system_error(errno, "descriptors for ddpctl clean");
    }
    ProgramSpec spec;
    spec.command = {*std::move(ddpctl),   "clean",     "--log-dir", log_dir, "--keep",
                    std::to_string(kept), "--besides", run};
    spec.fds = {FdMapping{.from = nothing.get(), .to = STDIN_FILENO},
                FdMapping{.from = nothing.get(), .to = STDOUT_FILENO},
                FdMapping{.from = said_.get(), .to = STDERR_FILENO}};
    spec.may_be_slow = true;
    return program_.start(spec, std::nullopt);
}

void OldRuns::finish(std::function<void()> on_done) {
    if (!is_under_way_) {
        on_done();
        return;
    }
    on_done_ = std::move(on_done);
    deadline_.set(std::chrono::steady_clock::now() + limits_.clean_end_timeout);
}

void OldRuns::ended(const std::optional<siginfo_t>& end) {
    is_under_way_ = false;
    if (end && was_not_executed(*end)) {
        warn("ddpctl cannot be executed; install it beside ddprun");
    } else if (end && end->si_code != CLD_EXITED) {
        warn("ddpctl " + end_text(*end));
    } else if (const std::string line = first_line(); !line.empty()) {
        warn(line);
    }
    deadline_.set({});
    if (on_done_) {
        std::exchange(on_done_, {})();
    }
}

std::string OldRuns::first_line() const {
    const std::string text = read_part(said_.get(), limits_.event_text_bytes_max);
    return printable(text.substr(0, text.find('\n')), std::string::npos);
}

void OldRuns::warn(const std::string& why) {
    events_.say(fmt::format("warning: --log-keep could not remove every run: {}", why));
}

}  // namespace ddprun::launcher
