#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <CLI/CLI.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/signal_set.hpp>
#include <fmt/format.h>
#include <spdlog/details/null_mutex.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>

#include "base/os/machine_identity.hpp"
#include "base/os/open_files.hpp"
#include "base/rng.hpp"
#include "base/signal_name.hpp"
#include "rendezvous/election/leadership.hpp"
#include "rendezvous/journal/sqlite_journal.hpp"
#include "rendezvous/metrics/prometheus_text.hpp"
#include "rendezvous/server/log_writer.hpp"
#include "rendezvous/server/server.hpp"
#include "rendezvous/transport/listener.hpp"
#include "rendezvous/transport/secret_file.hpp"
#include "rendezvous/transport/tls.hpp"
#include "rendezvous/wire/endpoint.hpp"
#include "worker_runtime/contract/exit_codes.hpp"

namespace {

using namespace ddprun;
using namespace ddprun::rdzv;

constexpr int kExitCannotStart = 1;
// Agents, and workers where their store is here.
constexpr std::size_t kConnectionsExpected = 16384;

struct Flags {
    std::string listen;
    int port = -1;
    int listen_fd = -1;
    std::string secret_file;
    bool is_insecure = false;
    bool serves_tcpstore = false;
    bool exits_when_idle = false;
    std::string state_dir;
    std::string ha;
    std::string advertise;
    std::string http_token_file;
    std::string operator_secret_file;
    TlsFiles tls;
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
  --state-dir FOLDER    keep the runs there, so that a daemon that is started again goes on with
                        them: no worker restarts. Without it, or if the folder was lost, it asks
                        the nodes what they run, which takes a few seconds
  --ha etcd://HOST:PORT,HOST:PORT[/NAME]
                        one of several daemons that keep their runs in etcd (its v3 HTTP gateway),
                        under NAME (default: ddprun). One of them decides at a time; when it dies,
                        another goes on and no worker restarts
  --advertise HOST:PORT where agents reach this one of several (default: where it listens)
  --tls-cert FILE, --tls-key FILE
                        speak TLS 1.3 only, with this certificate and its private key (PEM). HTTP
                        is HTTPS then; in clear only programs of this machine are answered
  --tls-ca FILE         and let in only who shows a certificate of this authority
  --http-token-file FILE
                        answer HTTP (/status, /events) to other machines, too, if they send the 64
                        hexadecimal digits in FILE as `Authorization: Bearer DIGITS`. Programs of
                        this machine are answered without
  --operator-secret-file FILE
                        take orders (ddpctl drain, restart, hold, stop, ...) from whoever holds the
                        64 hexadecimal digits in FILE, which must not be the secret of the nodes;
                        over HTTP they need what `ddpctl token` prints of it, as
                        `Authorization: Bearer TOKEN`. Without it none are taken
  --insecure            no secret: everybody who reaches the port may join and end jobs
  --serve-tcpstore      be a store for plain torchrun on the same port, too:
                        torchrun --rdzv-backend c10d --rdzv-endpoint HOST:PORT --rdzv-conf is_host=0
                        Its protocol has no secret and no TLS: whoever reaches the port may read
                        and change what torchrun keeps here, which no --state-dir holds. Jobs of
                        ddprun are as safe as without it, but cannot have --store daemon here
  --exit-when-idle      exit once all runs are closed and their nodes are gone, and remove
                        the --state-dir, which nobody needs then
  -h, --help            this text

It prints `listening on HOST:PORT` on standard output and logs to standard error. SIGTERM and
SIGINT end it; agents then keep their workers running for a while and look for a new one. With
--exit-when-idle the first one does so only once no node is connected: a scheduler sends it to all
of a job, whose nodes are to leave together; a second one ends it.

example, with the same secret file on all machines:
  ddprun-rendezvous --listen 10.0.0.7:29400
  ddprun --nnodes 2 --nproc-per-node 8 --rdzv-endpoint 10.0.0.7:29400 train.py    # on each of two

of several, each on its machine, and all given to the nodes:
  ddprun-rendezvous --listen 10.0.0.7:29400 --ha etcd://10.0.0.4:2379,10.0.0.5:2379,10.0.0.6:2379
  ddprun --nnodes 2 --rdzv-endpoint 10.0.0.7:29400,10.0.0.8:29400 train.py
)";

/// Formats lines here and has them written elsewhere.
class LogSink : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
public:
    /// `log` outlives the sink.
    explicit LogSink(LogWriter& log) : log_(log) {}

private:
    void sink_it_(const spdlog::details::log_msg& message) override {
        spdlog::memory_buf_t text;
        formatter_->format(message, text);
        log_.write(std::string_view(text.data(), text.size()));
    }
    void flush_() override {}

    LogWriter& log_;
};

void declare_flags(CLI::App& app, Flags& flags) {
    app.formatter_fn(
        [](const CLI::App*, std::string, CLI::AppFormatMode) { return std::string(kHelp); });
    CLI::Option* const port = app.add_option("--port", flags.port)->check(CLI::Range(0, 65535));
    CLI::Option* const listen = app.add_option("--listen", flags.listen);
    CLI::Option* const listen_fd =
        app.add_option("--listen-fd", flags.listen_fd)->check(CLI::NonNegativeNumber);
    port->excludes(listen)->excludes(listen_fd);
    listen->excludes(listen_fd);
    CLI::Option* const exits = app.add_flag("--exit-when-idle", flags.exits_when_idle);
    CLI::Option* const state_dir = app.add_option("--state-dir", flags.state_dir);
    CLI::Option* const ha = app.add_option("--ha", flags.ha)->excludes(state_dir);
    app.add_flag("--serve-tcpstore", flags.serves_tcpstore)->excludes(ha)->excludes(exits);
    app.add_option("--advertise", flags.advertise)->needs(ha);
    app.add_option("--http-token-file", flags.http_token_file);
    app.add_option("--operator-secret-file", flags.operator_secret_file);
    app.add_option("--tls-cert", flags.tls.cert);
    app.add_option("--tls-key", flags.tls.key);
    app.add_option("--tls-ca", flags.tls.ca);
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
    return ddprun::exit_code_of(error.code, kExitCannotStart);
}

/// Opens the runs that an earlier daemon kept in `folder`; this daemon keeps its own there, too. A
/// journal that cannot be used costs durability, not the service.
void open_journal(boost::asio::io_context& io, const std::string& folder, ServerOptions& options) {
    Result<OpenedJournal> opened = open_sqlite_journal(io, folder, options.limits);
    if (!opened) {
        options.log(fmt::format("runs are not durable: {}", opened.error().what));
        return;
    }
    if (!opened->note.empty()) {
        options.log(opened->note);
    }
    options.journal = std::move(opened->journal);
    options.records = std::move(opened->records);
}

int serve(const Flags& flags, ServerOptions options) {
    // Goes last: what is suspended in it when it has run ends with it, and refers to the others no
    // more.
    boost::asio::io_context io(1);
    if (!flags.state_dir.empty()) {
        open_journal(io, flags.state_dir, options);
    }
    const std::function<void(const std::string&)> log = options.log;
    bool is_done = false;
    {
        Server server(io, std::move(options));
        boost::asio::signal_set signals(io, SIGTERM, SIGINT);
        server.start([&] {
            is_done = true;
            signals.cancel();
        });
        const auto stop = [&server](boost::system::error_code cancelled, int) {
            if (!cancelled) {
                server.stop();
            }
        };
        signals.async_wait([&](boost::system::error_code cancelled, int number) {
            if (cancelled || !flags.exits_when_idle || server.connection_count() == 0) {
                stop(cancelled, number);
                return;
            }
            log(fmt::format("{}: ends when its nodes have gone", ddprun::signal_name(number)));
            signals.async_wait(stop);
        });
        io.run();
    }
    if (is_done && !flags.state_dir.empty()) {
        if (const Result<void> removed = remove_sqlite_journal(flags.state_dir); !removed) {
            log(removed.error().what);
        }
    }
    return kExitSuccess;
}

/// One of several daemons: decides only while etcd says that it leads.
int serve_with_others(LeadershipOptions competing, ServerOptions options) {
    boost::asio::io_context io(1);  // goes last, as in serve()
    const std::function<void(const std::string&)> log = options.log;
    options.is_one_of_several = true;
    Server server(io, std::move(options));
    Leadership leadership(io, std::move(competing));
    server.start({});
    LeadershipEvents events;
    events.leads = [&](std::uint64_t term, const std::map<JobId, std::string>& records) {
        log(fmt::format("leads from now on (term {}), with {} runs", term, records.size()));
        server.lead(leadership.journal(), records,
                    [&leadership](Instant now) { return leadership.is_leading(now); });
    };
    events.follows = [&](const std::string& leader) {
        log(leader.empty() ? "nobody leads" : fmt::format("the daemon at {} leads", leader));
        server.follow(leader);
    };
    events.lost = [&](const std::string& why) {
        log(fmt::format("leads no more: {}", why));
        server.follow("");
    };
    events.say = log;
    leadership.start(std::move(events));
    boost::asio::signal_set signals(io, SIGTERM, SIGINT);
    signals.async_wait([&](boost::system::error_code cancelled, int) {
        if (!cancelled) {
            server.stop();
            leadership.stop([] {});
        }
    });
    io.run();
    return kExitSuccess;
}

/// "etcd://h1:2379,h2:2379/name".
Result<LeadershipOptions> parse_ha(const std::string& text) {
    constexpr std::string_view kScheme = "etcd://";
    LeadershipOptions options;
    options.cluster = "ddprun";
    const auto bad = [&](const std::string& why) {
        return Error{ddprun::ErrorCode::InvalidArgument,
                     fmt::format("--ha {}: {}; write etcd://HOST:PORT,HOST:PORT", text, why)};
    };
    if (!text.starts_with(kScheme)) {
        return bad("only etcd is known");
    }
    std::string hosts = text.substr(kScheme.size());
    if (const std::size_t slash = hosts.find('/'); slash != std::string::npos) {
        options.cluster = hosts.substr(slash + 1);
        hosts.resize(slash);
    }
    if (options.cluster.empty() || options.cluster.find('/') != std::string::npos) {
        return bad("the name behind the hosts is empty or has a slash");
    }
    std::size_t begin = 0;
    while (begin <= hosts.size()) {
        const std::size_t end = std::min(hosts.find(',', begin), hosts.size());
        const Result<Endpoint> endpoint = parse_endpoint(hosts.substr(begin, end - begin));
        if (!endpoint) {
            return bad(endpoint.error().what);
        }
        options.etcds.push_back(*endpoint);
        begin = end + 1;
    }
    return options;
}

/// It travels, so it is no secret that proves anything else.
Result<void> read_http_token(const std::string& file, ServerOptions& options) {
    if (file.empty()) {
        return {};
    }
    Result<JobSecret> token = load_secret(file);
    if (!token) {
        return Error{token.error().code, "--http-token-file: " + token.error().what};
    }
    if (options.secret && is_same(*token, *options.secret)) {
        return Error{ErrorCode::InvalidArgument,
                     fmt::format("--http-token-file {}: it is the secret of the nodes, which must "
                                 "not travel; make another: openssl rand -hex 32",
                                 file)};
    }
    options.http.token = *std::move(token);
    return {};
}

/// The job's secret makes no operator.
Result<void> read_operator_secret(const std::string& file, ServerOptions& options) {
    if (file.empty()) {
        return {};
    }
    Result<JobSecret> secret = load_secret(file);
    if (!secret) {
        return Error{secret.error().code, "--operator-secret-file: " + secret.error().what};
    }
    const auto is_it = [&secret](const std::optional<JobSecret>& other) {
        return other && is_same(*secret, *other);
    };
    if (is_it(options.secret) || is_it(options.http.token)) {
        return Error{ErrorCode::InvalidArgument,
                     fmt::format("--operator-secret-file {}: it is the secret of {}, who would all "
                                 "be operators; make another: openssl rand -hex 32",
                                 file, is_it(options.secret) ? "the nodes" : "who watches")};
    }
    options.http.operator_secret = *secret;
    options.operator_secret = *std::move(secret);
    return {};
}

int run(const Flags& flags) {
    Result<LeadershipOptions> competing = LeadershipOptions{};
    if (!flags.ha.empty()) {
        competing = parse_ha(flags.ha);
        if (!competing) {
            return complain(competing.error());
        }
    }
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
    if (const Result<void> read = read_http_token(flags.http_token_file, options); !read) {
        return complain(read.error());
    }
    if (const Result<void> read = read_operator_secret(flags.operator_secret_file, options);
        !read) {
        return complain(read.error());
    }
    options.http.hostname = host_name();
    if (flags.tls.is_on()) {
        Result<std::shared_ptr<const TlsContext>> tls = TlsContext::for_rendezvous(flags.tls);
        if (!tls) {
            return complain(tls.error());
        }
        options.tls = *std::move(tls);
    }
    LogWriter log(STDERR_FILENO, options.limits);
    flush_at_abort(log);
    const auto logger =
        std::make_shared<spdlog::logger>("ddprun-rendezvous", std::make_shared<LogSink>(log));
    logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %n: %v");
    const std::string here = to_string(Endpoint{listener->host, listener->port});
    if (flags.is_insecure && !is_loopback(listener->host)) {
        logger->info("--insecure: everybody who reaches {} can run and end jobs here", here);
    }
    if (flags.serves_tcpstore && !is_loopback(listener->host)) {
        logger->info(
            "--serve-tcpstore: everybody who reaches {} can read and change what torchrun keeps "
            "here",
            here);
    }
    fmt::print("listening on {}\n", here);
    std::fflush(stdout);
    options.listener = std::move(listener->fd);
    options.serves_tcpstore = flags.serves_tcpstore;
    options.exits_when_idle = flags.exits_when_idle;
    options.metrics_text = prometheus_text();
    options.rng = ddprun::Rng(ddprun::random_seed());
    options.log = [logger](const std::string& line) { logger->info("{}", line); };
    if (!flags.ha.empty()) {
        competing->advertised = flags.advertise.empty() ? here : flags.advertise;
        return serve_with_others(*std::move(competing), std::move(options));
    }
    return serve(flags, std::move(options));
}

}  // namespace

int main(int argc, char** argv) {
    // The reader of our output may be gone before us.
    std::signal(SIGPIPE, SIG_IGN);
    ddprun::raise_open_files(kConnectionsExpected);
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
