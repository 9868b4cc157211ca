#include "launcher/run/daemon_starter.hpp"

#include <fcntl.h>
#include <sys/wait.h>

#include <cerrno>
#include <optional>
#include <utility>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>

#include "base/os/start_program.hpp"
#include "base/os/unique_fd.hpp"
#include "rendezvous/transport/listener.hpp"

namespace ddprun::launcher {

namespace {

constexpr int kListenerFd = 3;  ///< where the daemon finds the socket

}  // namespace

class DaemonStarter::Impl : public std::enable_shared_from_this<DaemonStarter::Impl> {
public:
    Impl(boost::asio::io_context& io, DaemonStarterOptions options)
        : options_(std::move(options)), exit_(io), patience_(io), io_(io) {}

    Result<void> claim() {
        if (pid_ > 0) {
            return {};  // ours still lives: it serves, or is about to end and will be replaced
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

    std::vector<int> living_pids() const {
        return pid_ > 0 ? std::vector<int>{pid_} : std::vector<int>{};
    }

    void wait_until_ended(Milliseconds patience, std::function<void()> done) {
        if (pid_ <= 0 || !exit_.is_open()) {
            boost::asio::post(io_, std::move(done));
            return;
        }
        done_ = std::move(done);
        patience_.expires_after(patience);
        patience_.async_wait([self = shared_from_this()](boost::system::error_code failure) {
            if (!failure) {
                self->finish();
            }
        });
    }

    void abandon() {
        boost::system::error_code ignored;
        exit_.close(ignored);
        patience_.cancel();
    }

private:
    Result<void> start(const rdzv::Listener& listener) {
        UniqueFd log(open(options_.log_file.c_str(),
                          O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
        if (!log.is_open()) {
            return ddprun::system_error(errno, fmt::format("cannot open {}", options_.log_file));
        }
        UniqueFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
        ProgramSpec spec;
        spec.command = {options_.program,   "--listen-fd", fmt::format("{}", kListenerFd),
                        "--exit-when-idle", "--state-dir", options_.state_folder};
        if (options_.is_insecure) {
            spec.command.emplace_back("--insecure");
        } else {
            spec.command.insert(spec.command.end(), {"--secret-file", options_.secret_file});
        }
        if (options_.tls.is_on()) {
            const rdzv::TlsFiles& tls = options_.tls;
            spec.command.insert(spec.command.end(),
                                {"--tls-cert", tls.cert, "--tls-key", tls.key, "--tls-ca", tls.ca});
        }
        spec.fds = {
            {null.get(), 0}, {log.get(), 1}, {log.get(), 2}, {listener.fd.get(), kListenerFd}};
        Result<StartedProgram> started = start_program(spec);
        if (!started) {
            return started.error();
        }
        pid_ = started->pid;
        if (started->pidfd.is_open()) {
            exit_.assign(started->pidfd.release());
            wait_for_exit();
        }
        return {};
    }

    void wait_for_exit() {
        exit_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                         [self = shared_from_this()](boost::system::error_code failure) {
                             if (!failure) {
                                 self->reap();
                             }
                         });
    }

    void reap() {
        waitpid(pid_, nullptr, WNOHANG);
        pid_ = 0;
        boost::system::error_code ignored;
        exit_.close(ignored);
        finish();
    }

    void finish() {
        patience_.cancel();
        if (done_) {
            std::exchange(done_, nullptr)();
        }
    }

    const DaemonStarterOptions options_;
    int pid_ = 0;
    boost::asio::posix::stream_descriptor exit_;  // the daemon's pidfd
    boost::asio::steady_timer patience_;
    boost::asio::io_context& io_;
    std::function<void()> done_;
};

DaemonStarter::DaemonStarter(boost::asio::io_context& io, DaemonStarterOptions options)
    : impl_(std::make_shared<Impl>(io, std::move(options))) {}

DaemonStarter::~DaemonStarter() {
    impl_->abandon();
}

Result<void> DaemonStarter::claim() {
    return impl_->claim();
}

std::vector<int> DaemonStarter::living_pids() const {
    return impl_->living_pids();
}

void DaemonStarter::wait_until_ended(Milliseconds patience, std::function<void()> done) {
    impl_->wait_until_ended(patience, std::move(done));
}

}  // namespace ddprun::launcher
