#include "agent/notify/command_delivery.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <optional>
#include <utility>

#include <boost/asio/post.hpp>

#include "base/os/start_program.hpp"
#include "base/os/unique_fd.hpp"

namespace ddprun::agent {

namespace {

/// A file in memory that has `line` and is read from its beginning: unlike a pipe it takes all at
/// once, whether or not anybody reads it.
Result<UniqueFd> file_with(const std::string& line) {
    UniqueFd file(::memfd_create("ddprun-notice", MFD_CLOEXEC));
    const auto size = static_cast<ssize_t>(line.size());
    if (!file.is_open() || ::write(file.get(), line.data(), line.size()) != size ||
        ::lseek(file.get(), 0, SEEK_SET) != 0) {
        return ddprun::system_error(errno, "memory for a notice");
    }
    return file;
}

}  // namespace

CommandDelivery::CommandDelivery(boost::asio::io_context& io, const Limits& limits,
                                 std::string command, std::function<void(int pid)> on_child,
                                 OnEnd on_end)
    : io_(io),
      timeout_(limits.notice_timeout),
      command_(std::move(command)),
      on_end_(std::move(on_end)),
      program_(io,
               {.on_child = std::move(on_child), .on_end = [this](std::optional<siginfo_t> end) {
                    const std::string fault = fault_of(end, timeout_);
                    on_end_(fault.empty() ? fault : "it " + fault);
                }}) {}

void CommandDelivery::begin(const std::string& line) {
    if (const Result<void> started = start(line + "\n"); !started) {
        boost::asio::post(io_, [this, why = started.error().what] {
            if (!is_cancelled_) {
                on_end_(why);
            }
        });
    }
}

void CommandDelivery::cancel() {
    is_cancelled_ = true;
    program_.cancel();
}

Result<void> CommandDelivery::start(const std::string& line) {
    const Result<UniqueFd> file = file_with(line);
    if (!file) {
        return file.error();
    }
    ProgramSpec spec;
    spec.command = {"/bin/sh", "-c", command_};
    spec.fds = {FdMapping{.from = file->get(), .to = STDIN_FILENO}};
    return program_.start(spec, timeout_);
}

}  // namespace ddprun::agent
