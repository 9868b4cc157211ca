#include "agent/helpers/memory_program.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <openssl/crypto.h>

#include "agent/memory/program_settings.hpp"
#include "base/os/start_program.hpp"
#include "rendezvous/transport/listener.hpp"

namespace ddprun::agent {

namespace {

// Workers of one node connect at the same moment.
constexpr int kBacklog = 4096;

/// A socket in no file system, and its name.
struct NamedListener {
    UniqueFd fd;
    std::string name;
};

Result<NamedListener> listen_for_workers() {
    NamedListener listener;
    listener.fd.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    auto* const generic = static_cast<sockaddr*>(static_cast<void*>(&address));
    // Without a name the kernel chooses a free one, which begins with NUL.
    socklen_t size = offsetof(sockaddr_un, sun_path);
    if (!listener.fd.is_open() || ::bind(listener.fd.get(), generic, size) != 0 ||
        ::listen(listener.fd.get(), kBacklog) != 0) {
        return system_error(errno, "cannot make a socket for the workers");
    }
    size = sizeof address;
    if (::getsockname(listener.fd.get(), generic, &size) != 0) {
        return system_error(errno, "cannot find the name of the socket for the workers");
    }
    const std::size_t bytes = size - offsetof(sockaddr_un, sun_path);
    listener.name.assign(address.sun_path, bytes);
    listener.name.front() = '@';
    return listener;
}

/// The settings fit into the pipe, so that nothing waits.
Result<UniqueFd> send_settings(const ProgramSettings& settings, UniqueFd& writing) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
        return system_error(errno, "cannot make a pipe");
    }
    UniqueFd reading(ends[0]);
    writing.reset(ends[1]);
    std::string line = encode_settings(settings);
    const ssize_t written = ::write(writing.get(), line.data(), line.size());
    const bool is_whole = written == static_cast<ssize_t>(line.size());
    OPENSSL_cleanse(line.data(), line.size());
    if (!is_whole) {
        return Error{ErrorCode::System, "cannot write its settings into a pipe"};
    }
    return reading;
}

}  // namespace

MemoryProgram::MemoryProgram(boost::asio::io_context& io, MemoryOptions options, JobId job,
                             bool has_partners, Events events)
    : options_(std::move(options)),
      job_(std::move(job)),
      has_partners_(has_partners),
      events_(std::move(events)),
      program_(io, {.on_child = [this](int pid) { events_.on_child(pid); },
                    .on_end =
                        [this](const std::optional<siginfo_t>& end) {
                            address_.clear();
                            settings_.reset();
                            const bool is_absent = end && was_not_executed(*end);
                            events_.say(fmt::format(
                                "ddprun-memory {}; the checkpoints in memory are gone, and the "
                                "next generation starts it again",
                                is_absent ? "cannot be executed: install it beside ddprun"
                                : end     ? end_text(*end)
                                          : "has ended"));
                        }}) {}

std::string MemoryProgram::begin_generation(const std::string& address) {
    if (address_.empty()) {
        if (const Result<void> started = start(address); !started) {
            events_.say(fmt::format("no checkpoint is kept in memory: {}", started.error().what));
        }
    }
    return address_;
}

Result<void> MemoryProgram::start(const std::string& address) {
    if (program_.is_stuck()) {
        return Error{ErrorCode::System, "the last ddprun-memory does not end"};
    }
    Result<std::string> program = path_beside_us("ddprun-memory");
    if (!program) {
        return program.error();
    }
    // Made anew each time, and closed here at once: when the program is gone, no worker waits.
    const Result<NamedListener> workers = listen_for_workers();
    if (!workers) {
        return workers.error();
    }
    ProgramSpec spec;
    spec.command = {*std::move(program)};
    spec.may_be_slow = true;
    spec.fds = {FdMapping{.from = workers->fd.get(), .to = kWorkersListenerFd}};
    std::optional<rdzv::Listener> peers;
    if (has_partners_) {
        Result<rdzv::Listener> listening = rdzv::listen_on(address, 0);
        if (!listening) {
            return listening.error();
        }
        peers = *std::move(listening);
        spec.fds.push_back(FdMapping{.from = peers->fd.get(), .to = kPeersListenerFd});
    }
    ProgramSettings settings;
    settings.bytes_max = *options_.bytes_max;
    settings.has_peers = has_partners_;
    settings.job = job_;
    settings.secret = options_.secret;
    settings.tls = options_.tls;
    const Result<UniqueFd> reading = send_settings(settings, settings_);
    if (!reading) {
        return reading.error();
    }
    spec.fds.push_back(FdMapping{.from = reading->get(), .to = STDIN_FILENO});
    const Result<void> started = program_.start(spec, std::nullopt);
    if (!started) {
        settings_.reset();
        return started;
    }
    address_ = workers->name;
    return {};
}

void MemoryProgram::stop() {
    program_.cancel();
    address_.clear();
    settings_.reset();
}

}  // namespace ddprun::agent
