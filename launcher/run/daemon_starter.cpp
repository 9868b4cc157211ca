#include "launcher/run/daemon_starter.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "base/os/read_files.hpp"
#include "base/os/start_program.hpp"
#include "base/os/unique_fd.hpp"
#include "base/printable.hpp"

namespace ddprun::launcher {

namespace {

constexpr int kListenerFd = 3;           ///< where the daemon finds the socket
constexpr std::size_t kLogBytes = 8192;  ///< read of its begin, and of its end
constexpr std::size_t kLogColumnsMax = 300;
constexpr const char* kListening = "listening on ";  ///< what the daemon prints when it does

std::string last_line(std::string_view text) {
    while (text.ends_with('\n')) {
        text.remove_suffix(1);
    }
    const std::size_t begin = text.rfind('\n') + 1;  // npos + 1 is 0
    return printable(text.substr(begin), kLogColumnsMax);
}

}  // namespace

DaemonStarter::DaemonStarter(boost::asio::io_context& io, DaemonStarterOptions options)
    : options_(std::move(options)),
      io_(io),
      starts_(options_.limits.daemon_starts_max),
      daemon_(io),
      patience_(io, [this] { finish(); }) {}

Result<void> DaemonStarter::claim() {
    if (daemon_.pid() != 0) {
        return {};  // ours still lives: it serves, or is about to end and will be replaced
    }
    if (!starts_.may_start()) {
        if (given_up_.empty()) {
            return {};
        }
        return Error{ErrorCode::Unreachable, std::exchange(given_up_, {})};
    }
    Result<rdzv::Listener> listener =
        rdzv::listen_on(options_.endpoint.host, options_.endpoint.port);
    if (!listener) {
        if (listener.error().code == ErrorCode::AddressInUse) {
            return {};
        }
        return listener.error();
    }
    return start(*listener);
}

std::vector<int> DaemonStarter::living_pids() const {
    return daemon_.pid() != 0 ? std::vector<int>{daemon_.pid()} : std::vector<int>{};
}

void DaemonStarter::wait_until_ended(Milliseconds patience, std::function<void()> done) {
    if (daemon_.pid() == 0) {
        boost::asio::post(io_, std::move(done));
        return;
    }
    done_ = std::move(done);
    patience_.set(std::chrono::steady_clock::now() + patience);
}

Result<void> DaemonStarter::start(const rdzv::Listener& listener) {
    UniqueFd log(::open(options_.log_file.c_str(),
                        O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!log.is_open()) {
        return ddprun::system_error(errno, fmt::format("cannot open {}", options_.log_file));
    }
    log_begin_ = ::lseek(log.get(), 0, SEEK_END);
    UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    ProgramSpec spec;
    spec.command = {options_.program,   "--listen-fd", fmt::format("{}", kListenerFd),
                    "--exit-when-idle", "--state-dir", options_.state_folder};
    if (options_.is_insecure) {
        spec.command.emplace_back("--insecure");
    } else {
        spec.command.insert(spec.command.end(), {"--secret-file", options_.secret_file});
    }
    if (!options_.operator_secret_file.empty()) {
        spec.command.insert(spec.command.end(),
                            {"--operator-secret-file", options_.operator_secret_file});
    }
    if (options_.tls.is_on()) {
        const rdzv::TlsFiles& tls = options_.tls;
        spec.command.insert(spec.command.end(),
                            {"--tls-cert", tls.cert, "--tls-key", tls.key, "--tls-ca", tls.ca});
    }
    spec.fds = {{null.get(), 0}, {log.get(), 1}, {log.get(), 2}, {listener.fd.get(), kListenerFd}};
    if (const Result<void> started = daemon_.start(spec); !started) {
        starts_.ended(false);
        return Error{
            started.error().code,
            started.error().what + (starts_.may_start() ? "" : "; no other rendezvous is started")};
    }
    daemon_.async_wait([this](const siginfo_t& end) { ended(end); });
    return {};
}

void DaemonStarter::ended(const siginfo_t& end) {
    const UniqueFd log(::open(options_.log_file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    const bool has_listened =
        read_part(log.get(), kLogBytes, log_begin_).find(kListening) != std::string::npos;
    starts_.ended(has_listened);
    if (!starts_.may_start()) {
        const off_t log_end = ::lseek(log.get(), 0, SEEK_END);
        const std::string line = last_line(read_part(
            log.get(), kLogBytes, std::max(log_begin_, log_end - static_cast<off_t>(kLogBytes))));
        given_up_ = fmt::format(
            "cannot start a rendezvous at {}: {} {} {} times before it listened{}; "
            "no other is started. Its log is {}",
            rdzv::to_string(options_.endpoint), options_.program, end_text(end),
            options_.limits.daemon_starts_max,
            line.empty() ? "" : fmt::format(", its last line: {}", line), options_.log_file);
    }
    finish();
}

void DaemonStarter::finish() {
    patience_.set({});
    if (done_) {
        std::exchange(done_, nullptr)();
    }
}

}  // namespace ddprun::launcher
