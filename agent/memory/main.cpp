// ddprun-memory: keeps the newest checkpoint of a node's workers in memory, beside ddprun, so that
// it survives the workers, and so that no copy of it holds up the thread that sends the beats.

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <string>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <fmt/format.h>
#include <openssl/crypto.h>

#include "agent/memory/buffers.hpp"
#include "agent/memory/peers.hpp"
#include "agent/memory/program_settings.hpp"
#include "agent/memory/worker_server.hpp"
#include "base/memory_limits.hpp"
#include "base/os/open_files.hpp"
#include "base/os/unique_fd.hpp"
#include "worker_runtime/contract/exit_codes.hpp"

namespace {

using namespace ddprun;

int usage() {
    fmt::print(stderr,
               "ddprun-memory: this program is started by ddprun --memory-checkpoints, which gives "
               "it its sockets; start ddprun instead\n");
    return kExitUsage;
}

bool is_listener(int fd) {
    int is_listening = 0;
    socklen_t size = sizeof is_listening;
    return ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &is_listening, &size) == 0 &&
           is_listening != 0;
}

UniqueFd inherited(int fd) {
    (void)::fcntl(fd, F_SETFD, FD_CLOEXEC);
    return UniqueFd(fd);
}

/// One line from ddprun, byte by byte: nothing follows it.
Result<agent::ProgramSettings> read_settings(const MemoryLimits& limits) {
    std::string line;
    char byte = '\0';
    while (line.size() < limits.memory_settings_bytes_max && byte != '\n') {
        const ssize_t got = ::read(STDIN_FILENO, &byte, 1);
        if (got == 0 || (got < 0 && errno != EINTR)) {
            break;
        }
        line += byte;
    }
    Result<agent::ProgramSettings> settings = agent::decode_settings(line);
    OPENSSL_cleanse(line.data(), line.size());
    return settings;
}

/// Ends the loop when ddprun has closed its end.
void await_end(boost::asio::posix::stream_descriptor& from_ddprun, boost::asio::io_context& io) {
    static std::array<char, 1> byte{};
    from_ddprun.async_read_some(boost::asio::buffer(byte),
                                [&](const boost::system::error_code& failure, std::size_t) {
                                    if (failure) {
                                        io.stop();
                                    } else {
                                        await_end(from_ddprun, io);
                                    }
                                });
}

}  // namespace

int main(int argc, char** /*argv*/) {
    if (argc != 1 || !is_listener(agent::kWorkersListenerFd)) {
        return usage();
    }
    // A signal to all processes of a node means the workers, and ddprun, which ends this program.
    for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) {
        (void)std::signal(signal, SIG_IGN);
    }
    const MemoryLimits limits;
    const Result<agent::ProgramSettings> settings = read_settings(limits);
    if (!settings) {
        fmt::print(stderr, "ddprun-memory: {}\n", settings.error().what);
        return kExitUsage;
    }
    raise_open_files();
    boost::asio::io_context io(1);
    agent::KeptCheckpoints kept{
        .shelf = agent::CheckpointShelf(settings->bytes_max, limits.memory_files_max)};
    Result<agent::PeersTls> tls = settings->has_peers ? agent::PeersTls::of(settings->tls)
                                                      : Result<agent::PeersTls>(agent::PeersTls());
    if (!tls) {
        fmt::print(stderr, "ddprun-memory: {}\n", tls.error().what);
        return kExitUsage;
    }
    agent::Peers peers(io, limits, settings->job, settings->secret, *std::move(tls), kept);
    agent::WorkerServer::OtherNodes others;
    if (settings->has_peers) {
        Result<std::string> endpoint = peers.start(inherited(agent::kPeersListenerFd));
        if (!endpoint) {
            fmt::print(stderr, "ddprun-memory: {}\n", endpoint.error().what);
            return kExitInternal;
        }
        others.endpoint = *std::move(endpoint);
        others.replicate = [&](const std::string& partner, const agent::StepKey& key, Rank rank,
                               std::vector<worker::MemoryFile> files,
                               std::function<void(std::string)> done) {
            peers.replicate(partner, key, rank, std::move(files), std::move(done));
        };
        others.fetch = [&](const std::string& from, const agent::StepKey& key,
                           worker::MemoryFile file, std::function<void(Result<void>)> done) {
            peers.fetch(from, key, std::move(file), std::move(done));
        };
    }
    agent::WorkerServer workers(io, limits, inherited(agent::kWorkersListenerFd), kept,
                                std::move(others));
    workers.start();
    boost::asio::posix::stream_descriptor from_ddprun(io, STDIN_FILENO);
    await_end(from_ddprun, io);
    io.run();
    return kExitSuccess;
}
