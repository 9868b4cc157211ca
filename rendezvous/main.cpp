#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <CLI/CLI.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/signal_set.hpp>
#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include "rendezvous/base/rng.hpp"
#include "rendezvous/client/secret_file.hpp"
#include "rendezvous/protocol/endpoint.hpp"
#include "rendezvous/protocol/exit_codes.hpp"
#include "rendezvous/server/listener.hpp"
#include "rendezvous/server/server.hpp"

namespace {

using ddprun::Error;
using ddprun::Result;
using namespace ddprun::rdzv;

constexpr int kExitCannotStart = 1;

struct Flags {
    std::string listen;
    int port = -1;
    int listen_fd = -1;
    std::string secret_file;
    bool is_insecure = false;
    bool exits_when_idle = false;
};

constexpr const char* kHelp =
    R"(The rendezvous of ddprun jobs: nodes join here, are given their ranks, and are told when a
generation of workers starts and stops. One daemon serves any number of jobs. Where none runs,
the first ddprun of a job starts one by itself.

usage: ddprun-rendezvous (--port N | --listen HOST:PORT) [options]

where to listen, one of:
  --port N              127.0.0.1, for the ddprun processes of this machine; 0: any free port
  --listen HOST:PORT    this address of this machine, for other machines
  --listen-fd N         an inherited descriptor that is bound and listens already

options:
  --secret-file FILE    what nodes must hold to join: 64 hexadecimal digits. Default:
                        $DDPRUN_SECRET_FILE, else ~/.config/ddprun/secret, which is made if it
                        is not there
  --insecure            no secret: everybody who reaches the port may join and end jobs
  --exit-when-idle      exit once all runs are closed and their nodes are gone
  -h, --help            this text

It prints `listening on HOST:PORT` on standard output and logs to standard error. SIGTERM and
SIGINT end it; agents then keep their workers running for a while and look for a new one.

example, with the same secret file on all machines:
  ddprun-rendezvous --listen 10.0.0.7:29400
  ddprun --nnodes 2 --nproc-per-node 8 --rdzv-endpoint 10.0.0.7:29400 train.py    # on each of two
)";

class Help : public CLI::Formatter {
public:
    std::string make_help(const CLI::App* /*app*/, std::string /*name*/,
                          CLI::AppFormatMode /*mode*/) const override {
        return kHelp;
    }
};

void declare_flags(CLI::App& app, Flags& flags) {
    app.formatter(std::make_shared<Help>());
    CLI::Option* const port = app.add_option("--port", flags.port)->check(CLI::Range(0, 65535));
    CLI::Option* const listen = app.add_option("--listen", flags.listen);
    CLI::Option* const listen_fd =
        app.add_option("--listen-fd", flags.listen_fd)->check(CLI::NonNegativeNumber);
    port->excludes(listen)->excludes(listen_fd);
    listen->excludes(listen_fd);
    app.add_flag("--exit-when-idle", flags.exits_when_idle);
    CLI::Option* const secret_file = app.add_option("--secret-file", flags.secret_file);
    app.add_flag("--insecure", flags.is_insecure)->excludes(secret_file);
}

Result<Listener> open_listener(const Flags& flags) {
    if (flags.listen_fd >= 0) {
        return adopt_listener(ddprun::UniqueFd(flags.listen_fd));
    }
    if (flags.port >= 0) {
        return listen_on("127.0.0.1", static_cast<std::uint16_t>(flags.port));
    }
    if (flags.listen.empty()) {
        return Error{ddprun::ErrorCode::InvalidArgument,
                     "where shall it listen? Give --port N or --listen HOST:PORT (see --help)"};
    }
    const Result<Endpoint> endpoint = parse_endpoint(flags.listen);
    if (!endpoint) {
        return Error{endpoint.error().code, "--listen: " + endpoint.error().what};
    }
    return listen_on(endpoint->host, endpoint->port);
}

bool is_loopback(const std::string& host) {
    boost::system::error_code failure;
    const auto address = boost::asio::ip::make_address(host, failure);
    return !failure && address.is_loopback();
}

int complain(const Error& error) {
    fmt::print(stderr, "ddprun-rendezvous: {}\n", error.what);
    return error.code == ddprun::ErrorCode::InvalidArgument ? kExitUsage : kExitCannotStart;
}

int serve(ServerOptions options) {
    boost::asio::io_context io(1);
    Server server(io, std::move(options));
    boost::asio::signal_set signals(io, SIGTERM, SIGINT);
    server.start([&signals] { signals.cancel(); });
    signals.async_wait([&server](boost::system::error_code cancelled, int) {
        if (!cancelled) {
            server.stop();
        }
    });
    io.run();
    return kExitSuccess;
}

int run(const Flags& flags) {
    Result<Listener> listener = open_listener(flags);
    if (!listener) {
        return complain(listener.error());
    }
    ServerOptions options;
    if (!flags.is_insecure) {
        Result<JobSecret> secret = load_or_create_secret(flags.secret_file);
        if (!secret) {
            return complain(secret.error());
        }
        options.secret = *std::move(secret);
    }
    const auto sink = std::make_shared<spdlog::sinks::stderr_sink_st>();
    const auto logger = std::make_shared<spdlog::logger>("ddprun-rendezvous", sink);
    logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %n: %v");
    if (flags.is_insecure && !is_loopback(listener->host)) {
        logger->info("--insecure: everybody who reaches {} can run and end jobs here",
                     to_string(Endpoint{listener->host, listener->port}));
    }
    fmt::print("listening on {}\n", to_string(Endpoint{listener->host, listener->port}));
    std::fflush(stdout);
    options.listener = std::move(listener->fd);
    options.exits_when_idle = flags.exits_when_idle;
    options.rng = ddprun::Rng(ddprun::random_seed());
    options.log = [logger](const std::string& line) { logger->info("{}", line); };
    return serve(std::move(options));
}

}  // namespace

int main(int argc, char** argv) {
    // Whoever read our output may be gone before us.
    std::signal(SIGPIPE, SIG_IGN);
    CLI::App app;
    Flags flags;
    declare_flags(app, flags);
    try {
        app.parse(argc, argv);
    } catch (const CLI::Success& success) {
        return app.exit(success);
    } catch (const CLI::ParseError& error) {
        return complain(
            {ddprun::ErrorCode::InvalidArgument, fmt::format("{}; see --help", error.what())});
    }
    return run(flags);
}
